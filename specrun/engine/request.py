"""A request for text: the single value that goes from the command line or the Python API down to the decode loop.

And the token ids of its prompt, with or without a chat template. A text that goes on keeps the tokens that it had.
"""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from specrun.constraints import read_grammar
from specrun.constraints.trigger import Trigger
from specrun.llama.chat_template import ChatTemplate
from specrun.llama.grammar import check_grammar
from specrun.llama.loaded_model import LlamaModel
from specrun.options.sampling_options import SamplingOptions, sampling_parameters, settled_max_tokens
from specrun.sampling import SamplingParameters


@dataclass(frozen=True)
class Request:
    """What to write."""

    prompt: list[int] = field(default_factory=list)  # token ids to continue
    sampling: SamplingParameters = field(default_factory=SamplingParameters)
    max_tokens: int | None = None  # most tokens to write; None is no limit
    stops: tuple[str, ...] = ()  # the answer ends before the first of these texts
    gbnf: str | None = None  # the grammar that the answer must match; None allows every text
    trigger: Trigger | None = None  # where in the answer the grammar begins to apply; None is its beginning
    shown: frozenset[int] = frozenset()  # control tokens that mark parts of an answer, and whose names are in the text
    ignore_eos: bool = False  # whether end-of-generation tokens count as text and do not end it
    # How many of the likeliest tokens are reported with each written token, with log-probabilities; None is no report.
    logprobs: int | None = None


def make_request(options: SamplingOptions) -> Request:
    """The request that the options describe, without a prompt. Raises UsageError for bad values and grammar files."""
    sampling = sampling_parameters(options, options.temp)
    stops = (options.stop,) if isinstance(options.stop, str) else tuple(options.stop or ())
    gbnf = check_grammar(read_grammar(options.grammar, options.json_schema))
    return Request([], sampling, settled_max_tokens(options.max_tokens, "--max-tokens"), stops, gbnf)


def chat_template(model: LlamaModel) -> ChatTemplate | None:
    """The model file's own chat template, or None if it has none."""
    source = model.chat_template
    if not source:
        return None
    return ChatTemplate(source, model.special_token_text("bos"), model.special_token_text("eos"))


def prompt_tokens(model: LlamaModel, text: str) -> list[int]:
    """Token ids of a whole prompt. The model's BOS is added unless the text begins with it, as a template's may."""
    bos = model.special_token_text("bos")
    return model.tokenize(text, add_special=not (bos and text.startswith(bos)))


def single_turn_tokens(model: LlamaModel, text: str, template: ChatTemplate | None) -> list[int]:
    """Token ids of `text` as the user's only message in the template; without a template, of `text` as it is."""
    return prompt_tokens(model, template.render([{"role": "user", "content": text}]) if template else text)


class WrittenTexts:
    """Gives the tokens of texts, where a text that was written before keeps its tokens.

    Tokenized again, an answer might be split differently from how it was written, and the KV cache would be useless
    from there on. Safe to use from several threads.

    most: texts that are remembered; the text that was used longest ago is forgotten.
    """

    def __init__(self, model: LlamaModel, most: int) -> None:
        self._model = model
        self._most = most
        self._kept: OrderedDict[str, array[int]] = OrderedDict()
        self._in_use = threading.Lock()

    def tokens(self, text: str) -> list[int]:
        """Token ids of `text`, beginning with those of the longest remembered text that it begins with."""
        with self._in_use:
            before = max((kept for kept in self._kept if text.startswith(kept)), key=len, default=None)
            if before is None:
                return prompt_tokens(self._model, text)
            tokens = self._kept[before]
            self._kept.move_to_end(before)
        return tokens.tolist() + self._model.tokenize(text[len(before) :], add_special=False)

    def keep(self, text: str, tokens: Sequence[int] | None) -> None:
        """Remember that `text` has these tokens; None, if they say something else, changes nothing."""
        if tokens is None:
            return
        with self._in_use:
            self._kept[text] = array("i", tokens)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
