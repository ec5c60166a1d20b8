"""Answers as they come, and those of `generate`: on stdout, and what the model thinks before on stderr."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from specrun.display_text import visible
from specrun.errors import INTERRUPTED_EXIT_CODE
from specrun.interrupts import InterruptFlag, undone
from specrun.reading.deltas import Delta
from specrun.views import output
from specrun.views.answer_report import Notices, as_json, as_text, status

if TYPE_CHECKING:
    from specrun.decoding.completion import Completion
    from specrun.decoding.generation import Request
    from specrun.loading.model import Model
    from specrun.options.sampling_options import Thinking


class PlainAnswer:
    """Writes an answer piece by piece. In a pipe it is not escaped (`visible`).

    console, notes: stdout and stderr. shows_thinking: whether reasoning is written to `notes`, dimmed on a terminal.
    """

    def __init__(self, console: Console, notes: Console, shows_thinking: bool) -> None:
        self._console, self._notes, self._shows_thinking = console, notes, shows_thinking
        self._is_thinking = False
        self._last = ""  # what was written of the answer last

    def shows(self, delta: Delta) -> bool:
        """Whether anything of an addition is written."""
        return bool(delta.content or (delta.reasoning and self._shows_thinking))

    def add(self, delta: Delta) -> None:
        """Write an addition, as far as it is shown."""
        if delta.reasoning and self._shows_thinking:
            self._is_thinking = True
            self._notes.print(Text(visible(delta.reasoning), style="dim"), end="", soft_wrap=True)
        if delta.content:
            self._end_thinking()
            self._write(delta.content)

    def end_line(self) -> None:
        """End the line that is not ended, if there is one."""
        self._end_thinking()
        if self._last and not self._last.endswith("\n"):
            self._write("\n")

    def _end_thinking(self) -> None:
        if self._is_thinking:
            self._is_thinking = False
            self._notes.print("\n")

    def _write(self, text: str) -> None:
        self._last = text
        self._console.file.write(visible(text) if self._console.is_terminal else text)
        self._console.file.flush()


def show_plain(
    console: Console, notes: Console, deltas: Iterable[Delta], completion: Completion, shows_thinking: bool
) -> None:
    """Write an answer in a chat as it comes, and an empty line after it."""
    del completion  # whose speed is not shown meanwhile
    answer = PlainAnswer(console, notes, shows_thinking)
    for delta in deltas:
        answer.add(delta)
    answer.end_line()
    console.file.write("\n")
    console.file.flush()


class AnswerWriter:
    """Writes an answer to one prompt after the other on stdout, and what is to be said about them on stderr.

    request: how answers are written; its prompt is ignored. raw: no chat template, and nothing in a text is thinking.
    system: the system message, if any. think: as `--think` has it. stats: statistics follow an answer.
    """

    def __init__(
        self, model: Model, request: Request, raw: bool, system: str | None, think: Thinking, stats: bool
    ) -> None:
        self._model, self._request, self._raw, self._system, self._stats = model, request, raw, system, stats
        self._shows_thinking = think == "show"
        self._session = None if raw or model.llama_model.chat_template is None else model.session(request)
        if self._session:
            self._session.system, self._session.thinks = system, think != "off"
        self._notices = Notices(model, self._session)

    def write(self, prompt: str, as_object: bool) -> int:
        """Write the answer piece by piece, and what the model thinks on stderr; or all of it as one JSON object.

        Returns the exit code. Ctrl-C ends the answer after the pass that is running.
        """
        if self._session:
            self._session.clear()
            completion = self._session.prepare(prompt)[0]
        else:
            completion = self._model.complete(self.asked(prompt)[0])
        shown = PlainAnswer(output.stdout, output.stderr, self._shows_thinking)
        started = time.perf_counter()
        with undone(shown.end_line), InterruptFlag() as interrupted:
            deltas = self._written(completion, interrupted)
            with output.activity(lambda: status(completion, started)):
                if as_object:
                    deque(deltas, maxlen=0)
                deltas = filter(shown.shows, deltas)
                first = list(islice(deltas, 1))
            for delta in chain(first, deltas):
                shown.add(delta)
        shown.end_line()
        answer, thinking = completion.text, ""
        if self._session:
            self._session.keep(completion)
            answer, thinking = self._session.messages[-1]["content"], self._session.thinking
        if as_object:
            output.write_json(as_json(completion, self._model, answer, thinking))
        if self._stats and self._model.prompt_states:  # which say what this text's prompt leaves on disk
            self._model.prompt_states.close(self._model.engine)
        for line in self._remarks(completion, answer):
            output.note(line)
        return INTERRUPTED_EXIT_CODE if completion.finish_reason == "interrupted" else 0

    def asked(self, prompt: str) -> tuple[Request, Callable[[str], tuple[str, str]]]:
        """A request that answers the prompt, and what parts the text of its answer into the answer and what the model
        thought before it. Raises PromptError.
        """
        if self._session:
            return self._session.single(prompt)
        tokens = self._model.prompt_tokens(prompt, self._raw, self._system)
        return replace(self._request, prompt=tokens), lambda text: (text, "")

    def answered(self, completion: Completion, answer: str, thinking: str) -> tuple[dict[str, Any], list[str]]:
        """The object of a completion, and what is to be said about it."""
        return as_json(completion, self._model, answer, thinking), self._remarks(completion, answer)

    def _written(self, completion: Completion, interrupted: Callable[[], bool]) -> Iterator[Delta]:
        if self._session:
            return self._session.read(completion, interrupted)
        return (Delta(content=piece) for piece in completion.stream(interrupted))

    def _remarks(self, completion: Completion, answer: str) -> list[str]:
        lines = self._notices.after(completion, answer)
        return [*lines, as_text(completion, self._model)] if self._stats else lines
