"""From messages or text to token ids. Text that was written before keeps its tokens (`WrittenTexts`)."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specrun.engine.chat_format import ChatFormat
from specrun.engine.completion import Completion
from specrun.engine.model import Model
from specrun.engine.prompt_tokens import WrittenTexts, prompt_tokens
from specrun.errors import ModelFileError
from specrun.llama.chat_template import Message
from specrun.llama.infill import infill_tokens
from specrun.serving.api_error import ApiError, TooLongError, refused

_LONGEST_TOKEN = 256  # characters; in real vocabularies only runs of spaces come near it
_MOST_KEPT = 64  # conversations whose tokens are remembered


@dataclass(frozen=True)
class Prompt:
    """A prompt as text, and as the tokens that stand for it. text: None for a prompt that came as tokens."""

    text: str | None
    tokens: list[int]


class Prompts:
    """Makes prompts of one model. Safe to use from several threads.

    format: how the model is talked with; ModelFileError is raised if its chat template is broken.
    """

    def __init__(self, model: Model) -> None:
        self._model = model.llama_model
        self._ctx_size = model.engine.ctx_size
        self.format = ChatFormat(self._model)
        # The template's process takes requests in turn, and many prompts at once would take cores from the model.
        self._one_at_a_time = threading.Lock()
        self._written = WrittenTexts(self._model, _MOST_KEPT, model.prompt_states)

    def of_messages(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] | None = None,
        thinks: bool = True,
        end: str = "",
        anew: bool = False,
    ) -> Prompt:
        """The prompt of a conversation. tools, variables, thinks: as `ChatFormat.prompt` has them.

        end: what follows the template's text. anew: whether text that was written before is split again.
        Raises ApiError if the template refuses the messages, or the prompt does not fit the context.
        """
        for message in messages:
            self.check_length(message["content"])
        try:
            with self._one_at_a_time:
                text = self.format.prompt(messages, thinks, tools, variables)
        except ModelFileError as error:  # as "roles must alternate"
            raise ApiError(str(error), param="messages") from error
        return self.of_text(text + end, anew)

    def of_text(self, text: str, anew: bool = False) -> Prompt:
        """The prompt that continues `text`; `anew` is as above. Raises ApiError if it does not fit the context."""
        self.check_length(text)
        with self._one_at_a_time:
            tokens = prompt_tokens(self._model, text) if anew else self._written.tokens(text)
        return self._checked(Prompt(text, tokens))

    def of_gap(
        self, before: str, behind: str, files: Sequence[tuple[str, str]] = (), begun: str = "", param: str = "suffix"
    ) -> Prompt:
        """The prompt whose answer fills a gap, as `infill_tokens` has it. Raises ApiError if it does not fit the
        context, or the model cannot do it: `param` is the field that asks for it.
        """
        self.check_length("".join([before, behind, begun, *(name + text for name, text in files)]))
        tokens = infill_tokens(self._model, before, behind, files, begun)
        if tokens is None:
            raise refused(param, "is not possible: this model has no tokens for filling a gap, it only continues texts")
        return self._checked(Prompt(None, tokens))

    def check_length(self, text: str) -> None:
        """Refuse a text that cannot fit, without the time that splitting it would take. Raises ApiError."""
        if len(text) > self._ctx_size * _LONGEST_TOKEN:
            raise TooLongError(len(text) // _LONGEST_TOKEN, self._ctx_size, is_split=False)

    def of_tokens(self, tokens: list[int]) -> Prompt:
        """The prompt of these tokens. Raises ApiError for unknown tokens, and for too many."""
        if tokens and not 0 <= min(tokens) <= max(tokens) < self._model.n_vocab:
            raise ApiError(f"prompt must have token ids from 0 to {self._model.n_vocab - 1}", param="prompt")
        return self._checked(Prompt(None, tokens))

    def _checked(self, prompt: Prompt) -> Prompt:
        if not prompt.tokens:
            raise ApiError("the prompt is empty; give some text")
        if len(prompt.tokens) >= self._ctx_size:
            raise TooLongError(len(prompt.tokens), self._ctx_size)
        return prompt

    def keep(self, prompt: Prompt, completion: Completion) -> None:
        """Remember the tokens of an answer and of what it answered."""
        if prompt.text is not None:
            self._written.keep(prompt.text + completion.text, completion.tokens_with_prompt)
