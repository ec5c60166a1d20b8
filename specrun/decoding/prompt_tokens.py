"""Token ids of prompts, with or without a chat template."""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from specrun.decoding.fitted_template import FittedTemplate
from specrun.decoding.prompt_states import PromptStates
from specrun.errors import UsageError
from specrun.llama import named_template
from specrun.llama.chat_template import ChatTemplate, Message
from specrun.llama.loaded_model import LlamaModel
from specrun.llama.named_template import NamedTemplate
from specrun.locations import decode, read_bytes

_LARGEST_TEMPLATE = 2**20  # bytes; models' own have some thousands


def given_template(choice: str) -> str:
    """What `--chat-template` stands for: the text of a Jinja file, or the name of a template of llama.cpp's.

    Raises UsageError for what is neither, and for a file that cannot be read.
    """
    names = named_template.names()
    if choice in names:
        return choice
    if not Path(choice).exists():
        raise UsageError(f"--chat-template {choice} is neither a file nor one of {', '.join(sorted(names))}")
    text = decode(read_bytes(Path(choice), UsageError, _LARGEST_TEMPLATE), choice, UsageError)
    if not text.strip():
        raise UsageError(f"{choice} is empty; give a file with a Jinja template")
    return text


def chat_template(model: LlamaModel) -> FittedTemplate | None:
    """The chat template that the user gave, or the model file's own; None if there is none."""
    source = model.chat_template
    if not source:
        return None
    if source in named_template.names():
        return FittedTemplate(NamedTemplate(source))
    return FittedTemplate(ChatTemplate(source, model.special_token_text("bos"), model.special_token_text("eos")))


def prompt_tokens(model: LlamaModel, text: str) -> list[int]:
    """Token ids of a whole prompt. The model's BOS is added unless the text begins with it, as a template's may."""
    bos = model.special_token_text("bos")
    return model.tokenize(text, add_special=not (bos and text.startswith(bos)))


def single_turn_tokens(
    model: LlamaModel, text: str, template: FittedTemplate | None, system: str | None = None
) -> list[int]:
    """Token ids of `text` as the user's only message in the template, after the system message, if there is one.

    Without a template, of `text` as it is.
    """
    if template is None:
        return prompt_tokens(model, text)
    before: list[Message] = [{"role": "system", "content": system}] if system else []
    return prompt_tokens(model, template.render([*before, {"role": "user", "content": text}]))


class WrittenTexts:
    """Gives the tokens of texts, where a text that was written before keeps its tokens.

    Tokenized again, an answer might be split differently from how it was written, and the KV cache would be useless
    from there on. Safe to use from several threads.

    most: texts that are remembered; the text that was used longest ago is forgotten.
    states: texts that earlier runs have kept on disk; None where none are.
    """

    def __init__(self, model: LlamaModel, most: int, states: PromptStates | None = None) -> None:
        self._model = model
        self._most = most
        self._states = states
        self._kept: OrderedDict[str, array[int]] = OrderedDict()
        self._in_use = threading.Lock()

    def tokens(self, text: str) -> list[int]:
        """Token ids of `text`, beginning with those of the longest remembered text that it begins with."""
        with self._in_use:
            before = max((kept for kept in self._kept if text.startswith(kept)), key=len, default="")
            tokens = self._kept[before].tolist() if before else []
            if before:
                self._kept.move_to_end(before)
        if self._states:
            tokens, before = max((tokens, before), self._states.beginning(text, self._model), key=lambda it: len(it[1]))
        if not before:
            return prompt_tokens(self._model, text)
        return tokens + self._model.tokenize(text[len(before) :], add_special=False)

    def keep(self, text: str, tokens: Sequence[int] | None) -> None:
        """Remember that `text` has these tokens; None, if they say something else, changes nothing."""
        if tokens is None:
            return
        with self._in_use:
            self._kept[text] = array("i", tokens)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
