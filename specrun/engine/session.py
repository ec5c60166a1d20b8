"""A conversation on top of the engine: chat template, history, and a cache that a new turn only adds to."""

from __future__ import annotations

from dataclasses import dataclass, replace

from specrun.engine.completion import Completion, Request
from specrun.engine.decoding import Engine
from specrun.engine.prompt_tokens import chat_template, prompt_tokens
from specrun.errors import ModelFileError, PromptError
from specrun.llama.chat_template import Message
from specrun.llama.grammar import Grammar
from specrun.sampling import SamplingParameters
from specrun.sampling.parameters import MAX_SEED
from specrun.speculation import PlanChooser


@dataclass
class _Written:
    """A text and the very tokens that it was read from or written with."""

    text: str
    tokens: list[int]


class Session:
    """The messages so far and the settings of the next answer. grammar: what every answer has to be.

    Raises ModelFileError if the model has no chat template.
    """

    def __init__(
        self,
        engine: Engine,
        sampling: SamplingParameters,
        plans: PlanChooser,
        max_tokens: int | None,
        stops: list[str],
        grammar: Grammar | None = None,
    ) -> None:
        self.engine = engine
        self.sampling = sampling
        self.plans = plans
        self.max_tokens = max_tokens
        self.stops = stops
        self.grammar = grammar
        self.messages: list[Message] = []
        self._model = engine.target.context.model
        template = chat_template(self._model)
        if template is None:
            raise ModelFileError(f"{self._model.path} has no chat template; use `specrun generate --raw`")
        self._template = template
        self._written: _Written | None = None

    @property
    def system(self) -> str | None:
        """The system message, or None."""
        return self.messages[0]["content"] if self.messages and self.messages[0]["role"] == "system" else None

    @system.setter
    def system(self, text: str | None) -> None:
        rest = self.messages[1:] if self.system is not None else self.messages
        first: list[Message] = [{"role": "system", "content": text}] if text else []
        self.messages = first + rest

    @property
    def n_turns(self) -> int:
        """Number of the user's messages."""
        return sum(message["role"] == "user" for message in self.messages)

    def ask(self, text: str) -> tuple[Completion, int]:
        """Prepare the answer to `text`: the completion to stream, and how many old turns were dropped to make room.

        Hand the streamed completion to `answer`, or call `undo`. Raises PromptError, changing nothing, if the message
        alone does not fit the context.
        """
        return self._prepare([*self.messages, {"role": "user", "content": text}])

    def regenerate(self) -> tuple[Completion, int] | None:
        """Prepare another answer to the last message, with the next seed; None if there is no message."""
        if self.n_turns == 0:
            return None
        if self.messages[-1]["role"] == "assistant":
            self.messages.pop()
        self.sampling = replace(self.sampling, seed=(self.sampling.seed + 1) % MAX_SEED)
        return self._prepare(self.messages)

    def answer(self, completion: Completion) -> None:
        """Take a streamed completion, whole or interrupted, into the history."""
        self.messages.append({"role": "assistant", "content": completion.text})
        spelled = b"".join(self._model.token_bytes(token) for token in completion.token_ids)
        # They differ where a stop string cut the text off.
        if self._written and spelled.decode("utf-8", errors="replace") == completion.text:
            tokens = completion.request.prompt + completion.token_ids
            self._written = _Written(self._written.text + completion.text, tokens)

    def undo(self) -> bool:
        """Forget the last message and its answer; False if there is none."""
        if self.n_turns == 0:
            return False
        while self.messages.pop()["role"] != "user":
            pass
        return True

    def clear(self) -> None:
        """Forget everything but the system message."""
        self.messages = [message for message in self.messages if message["role"] == "system"]

    def _prepare(self, messages: list[Message]) -> tuple[Completion, int]:
        messages = list(messages)
        # A quarter of the context is kept for the answer.
        most = self.engine.ctx_size - max(self.engine.ctx_size // 4, 1)
        n_dropped = 0
        while len((written := self._read(messages)).tokens) > most and _drop_oldest_turn(messages):
            n_dropped += 1
        if len(written.tokens) >= self.engine.ctx_size:
            raise PromptError(
                f"the message has {len(written.tokens)} tokens and the context {self.engine.ctx_size}; "
                "shorten it or give a larger --ctx-size"
            )
        self.messages = messages
        self._written = written
        request = Request(written.tokens, self.sampling, self.plans, self.max_tokens, self.stops, self.grammar)
        return Completion(self.engine, request), n_dropped

    def _read(self, messages: list[Message]) -> _Written:
        """Tokens of the rendered conversation. Text that was written already keeps the tokens it was written with:
        read anew it might be split otherwise, and the cache would be lost from there on.
        """
        text = self._template.render(messages)
        before = self._written
        if before and text.startswith(before.text):
            rest = text[len(before.text) :]
            return _Written(text, before.tokens + self._model.tokenize(rest, add_special=False))
        return _Written(text, prompt_tokens(self._model, text))


def _drop_oldest_turn(messages: list[Message]) -> bool:
    """Remove the first user message and its answer, unless it is the only one."""
    users = [i for i, message in enumerate(messages) if message["role"] == "user"]
    if len(users) < 2:
        return False
    del messages[users[0] : users[1]]
    return True
