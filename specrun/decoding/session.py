"""A conversation. Each turn keeps the tokens of the turns before it, so the KV cache stays valid."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from specrun.decoding.completion import Completion
from specrun.decoding.generation import Request
from specrun.decoding.prompt_states import PromptStates
from specrun.decoding.prompts import ChatFormat, WrittenTexts
from specrun.errors import PromptError
from specrun.interrupts import never
from specrun.llama import LlamaModel
from specrun.llama.chat_template import Message
from specrun.reading.deltas import Delta
from specrun.sampling.adjustments import MAX_SEED
from specrun.speculation.controllers.chooser import PlanChooser


class Session:
    """The messages so far, and how the next answer is written. Raises ModelFileError for a broken chat template.

    model: the target.
    ctx_size: most tokens of conversation and answer together.
    complete: makes a completion from a request and what chooses its plans.
    request: how answers are written; its prompt is ignored.
    states: conversations on disk, whose tokens this one has where it goes on with them.
    plans: what chooses each pass's plan; None leaves it to the model.
    thinks: whether the model may think before it answers. Where a grammar holds the answer it does not.
    messages: the conversation. What the model thought stands apart from its answers.
    """

    def __init__(
        self,
        model: LlamaModel,
        ctx_size: int,
        complete: Callable[[Request, PlanChooser | None], Completion],
        request: Request,
        states: PromptStates | None = None,
    ) -> None:
        self.request = request
        self.plans: PlanChooser | None = None
        self.thinks = True
        self.messages: list[Message] = []
        self._before: list[Message] = []  # as they were when the present completion was prepared
        self._ctx_size = ctx_size
        self._complete = complete
        self._format = ChatFormat(model)
        self._shown = self._format.shown()
        # The last prompt with its answer, and without it: templates leave out what was thought before earlier answers.
        self._written = WrittenTexts(model, 2, states)
        self._asked = ""  # the rendered conversation that the present completion answers

    def ask(self, text: str) -> Completion:
        """Write the answer to a message, and keep both. Raises PromptError if the message does not fit the context."""
        completion, _ = self.prepare(text)
        for _ in self._stream(completion):
            pass
        return completion

    def stream(self, text: str) -> Iterator[str]:
        """The same as `ask`, but yields pieces of text as they are written."""
        completion, _ = self.prepare(text)
        return self._stream(completion)

    def _stream(self, completion: Completion) -> Iterator[str]:
        try:
            yield from completion.stream()
        except BaseException:
            self.take_back()
            raise
        self.keep(completion)

    def read(self, completion: Completion, interrupted: Callable[[], bool] = never) -> Iterator[Delta]:
        """Write the answer of a completion that was prepared here, and yield what each piece adds to it.

        interrupted: as `Completion.stream` has it.
        """
        reader = self._format.form.reader(self._asked)
        for piece in completion.stream(interrupted):
            yield from reader.push(piece)
        yield from reader.finish()

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
    def system_notice(self) -> str | None:
        """What `ChatFormat.system_notice` says, if there is a system message."""
        return None if self.system is None else self._format.system_notice

    @property
    def thinking(self) -> str:
        """What the model thought before the last answer."""
        last: Message = self.messages[-1] if self.messages else {"role": "", "content": ""}
        return last.get("reasoning_content") or last.get("thinking") or ""

    @property
    def n_turns(self) -> int:
        """Number of the user's messages."""
        return sum(message["role"] == "user" for message in self.messages)

    def prepare(self, text: str) -> tuple[Completion, int]:
        """A completion that answers `text`, and how many of the oldest turns were dropped to make room for it.

        After streaming it, pass it to `keep`, or call `take_back`. Raises PromptError if the message alone does not fit
        the context; the conversation is then unchanged.
        """
        return self._prepare([*self.messages, {"role": "user", "content": text}])

    def regenerate(self) -> tuple[Completion, int] | None:
        """As `prepare`, for another answer to the last message with the next seed; None without a message."""
        if self.n_turns == 0:
            return None
        asked = self.messages[:-1] if self.messages[-1]["role"] == "assistant" else self.messages
        sampling = self.request.sampling
        self.request = replace(self.request, sampling=replace(sampling, seed=(sampling.seed + 1) % MAX_SEED))
        return self._prepare(asked)

    def keep(self, completion: Completion) -> None:
        """Add the answer of a streamed completion, whole or interrupted, to the conversation."""
        form = self._format.form
        answer, thinking = form.reader(self._asked).parts(completion.text)
        message: Message = {"role": "assistant", "content": answer}
        if thinking:
            message[form.reasoning_key] = thinking
        self.messages.append(message)
        self._written.keep(self._asked + completion.text, completion.tokens_with_prompt)

    def take_back(self) -> None:
        """Make the conversation what it was before the last completion was prepared, with turns that were dropped."""
        self.messages = self._before

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

    def single(self, text: str) -> tuple[Request, Callable[[str], tuple[str, str]]]:
        """A request that answers `text` after the system message alone, and what parts the text of its answer into the
        answer and what the model thought before it. The conversation stays as it is. Raises PromptError.
        """
        first = [message for message in self.messages if message["role"] == "system"]
        _, request, asked, _ = self._fitting([*first, {"role": "user", "content": text}])
        return request, lambda written: self._format.form.reader(asked).parts(written)

    def _prepare(self, messages: list[Message]) -> tuple[Completion, int]:
        fitting, request, self._asked, n_dropped = self._fitting(messages)
        self._before, self.messages = self.messages, fitting
        self._written.keep(self._asked, request.prompt)
        return self._complete(request, self.plans), n_dropped

    def _fitting(self, messages: list[Message]) -> tuple[list[Message], Request, str, int]:
        """The messages that fit the context, their request, their text, and how many turns were dropped."""
        messages = list(messages)
        # A quarter of the context is kept free for the answer: 1,024 tokens, a page and a half, of the default.
        most = self._ctx_size - max(self._ctx_size // 4, 1)
        n_dropped = 0
        while True:
            text = self._format.prompt(messages, self.thinks and self.request.gbnf is None)
            tokens = self._written.tokens(text)
            if len(tokens) <= most or not _drop_oldest_turn(messages):
                break
            n_dropped += 1
        if len(tokens) >= self._ctx_size:
            raise PromptError(
                f"the message has {len(tokens)} tokens and the context {self._ctx_size}; "
                "shorten it or give a larger --ctx-size"
            )
        return messages, replace(self.request, prompt=tokens, shown=self._shown), text, n_dropped


def _drop_oldest_turn(messages: list[Message]) -> bool:
    """Remove the first user message and its answer, unless it is the only one."""
    users = [i for i, message in enumerate(messages) if message["role"] == "user"]
    if len(users) < 2:
        return False
    del messages[users[0] : users[1]]
    return True
