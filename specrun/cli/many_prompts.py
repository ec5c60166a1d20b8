"""`specrun generate --jsonl`: prompts as lines of JSON, several of which are answered at a time."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from specrun.cli.answers_file import AnswersFile, made_with
from specrun.cli.prompt_input import PromptLine
from specrun.decoding.completion import Completion
from specrun.decoding.generation import Request
from specrun.display_text import counted, duration_text, rate_text
from specrun.errors import INTERRUPTED_EXIT_CODE, ModelFileError, PromptError, SpecrunError
from specrun.interrupts import InterruptFlag
from specrun.loading.many import write_many
from specrun.loading.model import Model
from specrun.long_run import left_text
from specrun.views import output
from specrun.views.plain_answer import AnswerWriter

_GATHER_S = 0.3  # from one line to the next, where they all are there
_NAMED = 5  # lines that failed, as a message names them
_POLL_S = 0.1  # between looks at whether the user has asked for the end, while no line comes


class Lines:
    """Lines of prompts as they come, read in a thread of its own, so that answers are written meanwhile."""

    def __init__(self, lines: Iterator[PromptLine]) -> None:
        self._queue: queue.SimpleQueue[PromptLine | BaseException | None] = queue.SimpleQueue()
        self._first: deque[PromptLine] = deque()  # that were taken before they were asked for
        self._has_ended = False
        threading.Thread(target=self._read, args=(lines,), daemon=True).start()

    def _read(self, lines: Iterator[PromptLine]) -> None:
        try:
            for line in lines:
                self._queue.put(line)
            self._queue.put(None)
        except BaseException as error:  # which the other thread raises
            self._queue.put(error)

    @property
    def is_over(self) -> bool:
        return self._has_ended and not self._first

    def all(self) -> list[PromptLine] | None:
        """All lines, if the end comes at once, as from a file; they are still to be taken. None where more may come."""
        while not self._has_ended and (line := self._next(_GATHER_S)):
            self._first.append(line)
        return list(self._first) if self._has_ended else None

    def take(self, may_wait: bool) -> PromptLine | None:
        """The next line; None if none is there. may_wait: for a moment."""
        if self._first:
            return self._first.popleft()
        return None if self._has_ended else self._next(_POLL_S if may_wait else 0)

    def _next(self, seconds: float) -> PromptLine | None:
        try:
            found = self._queue.get(timeout=seconds) if seconds else self._queue.get_nowait()
        except queue.Empty:
            return None
        if isinstance(found, BaseException):
            raise found
        self._has_ended = found is None
        return found


@dataclass
class Printed:
    """Objects on stdout, in the order of the lines or as they are ready. Use it in a `with` statement.

    after_ctrl_c: what becomes of texts after that, for people. ended: of those that are whole.
    """

    after_ctrl_c = "Ctrl-C ends the texts as they are"
    ended = "finished; with --output FILE the same command would go on with the others"

    as_ready: bool
    _waiting: dict[int, dict[str, Any]] = field(default_factory=dict)
    _next: int = 0

    def has(self, _number: int, _line: PromptLine) -> bool:
        """Whether the line, which came as the `number`th, needs no answer, as it has one."""
        return False

    def put(self, number: int, _line: PromptLine, value: dict[str, Any], _is_failed: bool) -> None:
        """Take the object of a line."""
        if self.as_ready:
            output.write_json(value)
            return
        self._waiting[number] = value
        while self._next in self._waiting:
            output.write_json(self._waiting.pop(self._next))
            self._next += 1

    def __enter__(self) -> Printed:
        return self

    def __exit__(self, *_: object) -> None:
        """Print what waits for lines before it, which will not be answered any more."""
        for number in sorted(self._waiting):
            output.write_json(self._waiting.pop(number))


Answers: TypeAlias = "Printed | AnswersFile"  # where the objects of answered lines go
# A line whose answer is written: its number, itself, and what divides its text.
_Asked: TypeAlias = tuple[int, PromptLine, Callable[[str], tuple[str, str]]]


@dataclass
class _Asking:
    """The source of texts for `write_many`. Lines that cannot be answered end here, with their errors.

    known: how many lines there are; None if more may come.
    """

    lines: Lines
    writer: AnswerWriter
    answers: Answers
    known: int | None
    n_taken: int = 0
    n_left_out: int = 0  # as they have answers
    failed: list[int] = field(default_factory=list)  # the numbers of their lines
    n_done: int = 0
    n_tokens: int = 0
    exit_code: int = 0
    started: float = field(default_factory=time.monotonic)

    @property
    def is_over(self) -> bool:
        return self.lines.is_over

    def take(self, may_wait: bool) -> tuple[_Asked, Request] | None:
        while line := self.lines.take(may_wait):
            number, self.n_taken = self.n_taken, self.n_taken + 1
            try:
                if line.error:
                    raise PromptError(line.error)
                if self.answers.has(number, line):
                    self.n_left_out += 1
                    continue
                request, parts = self.writer.asked(line.prompt)
                return (number, line, parts), request
            except (PromptError, ModelFileError) as error:  # a chat template may refuse this line, and take the next
                self.fail(number, line, error)
        return None

    def fail(self, number: int, line: PromptLine, error: SpecrunError) -> None:
        """The line gets an object with its error, which decides the exit code."""
        place = {} if line.has_id else {"line": line.number}
        self.answers.put(number, line, {"id": line.id, **place, "error": str(error)}, True)
        self.exit_code = error.exit_code
        self.failed.append(line.number)

    def add(self, asked: _Asked, found: Completion | PromptError) -> None:
        number, line, parts = asked
        if isinstance(found, PromptError):
            self.fail(number, line, found)
            return
        value, notes = self.writer.answered(found, *parts(found.text))
        self.answers.put(number, line, {"id": line.id} | value, False)
        for note in notes:
            output.note(note)
        self.n_done += found.finish_reason != "interrupted"

    def count(self, n_tokens: int) -> None:
        self.n_tokens += n_tokens

    def progress(self) -> str:
        """How far it is, for a line on a terminal."""
        done, left = counted(self.n_done, "text"), ""
        if self.known is not None:
            n_all = self.known - self.n_left_out - len(self.failed)
            done, n_left = f"{self.n_done} of {counted(n_all, 'text')}", n_all - self.n_done
            left = left_text(self._seconds * n_left / self.n_done) if self.n_done else ""
        return f"{done}, {self._rate} tokens/s{left}, {self.answers.after_ctrl_c}"

    def summary(self) -> str:
        """What was written, for a line at the end."""
        written = f"{counted(self.n_done, 'text')}, {counted(self.n_tokens, 'token')}"
        return f"{written} in {duration_text(self._seconds)}, {self._rate} tokens/s"

    def ended(self) -> str:
        """What became of the texts of a run that Ctrl-C ended."""
        n = self.n_left_out + self.n_done
        texts = counted(n, "text") if self.known is None else f"{n} of {counted(self.known, 'text')}"
        return f"{texts} {self.answers.ended}"

    def failures(self) -> str:
        """How many lines failed, and which."""
        first, n = sorted(self.failed)[:_NAMED], len(self.failed)
        more = f" and {n - len(first)} more" if n > len(first) else ""
        which = f"line{'s' if n > 1 else ''} {', '.join(map(str, first))}{more}"
        return f"{n} of {counted(self.n_taken, 'line')} failed ({which}); `error` says why"

    @property
    def _seconds(self) -> float:
        return max(time.monotonic() - self.started, 1e-3)

    @property
    def _rate(self) -> str:
        return rate_text(self.n_tokens / self._seconds)


@contextmanager
def answers_to(file: Path | None, as_ready: bool, known: Sequence[PromptLine] | None) -> Iterator[Answers]:
    """Where the answers go: a file, which is read and taken, or stdout. known: all lines; None if more may come.

    Raises UsageError for a file that the answers to these cannot go to.
    """
    with AnswersFile(file, output.note) if file else Printed(as_ready) as answers:
        _check(known, answers)
        yield answers


def _check(known: Sequence[PromptLine] | None, answers: Answers) -> None:
    """Raise UsageError, before anything is written, for what the answers refuse."""
    for number, line in enumerate(known or ()):
        if not line.error:
            answers.has(number, line)


def write_lines(
    model: Model,
    writer: AnswerWriter,
    lines: Lines,
    known: Sequence[PromptLine] | None,
    answers: Answers,
    made_from: tuple[Any, ...],
) -> int:
    """Write one JSON object for each line. A line that fails gets an object with `error` and decides the exit code.

    known: as for `answers_to`. made_from: what texts depend on besides prompts and model, for `made_with`.
    """
    if isinstance(answers, AnswersFile):
        answers.run = made_with(model, *made_from)
        _check(known, answers)
    asking = _Asking(lines, writer, answers, None if known is None else len(known))
    may_show = isinstance(answers, AnswersFile) or not output.stdout.is_terminal
    shown = output.activity(asking.progress) if may_show else nullcontext()
    with InterruptFlag() as interrupted, shown:
        for asked, found in write_many(model, asking, interrupted=interrupted, count=asking.count):
            asking.add(asked, found)
    output.hint(asking.summary())
    if interrupted():
        output.note(asking.ended())
    if asking.failed:
        output.note(asking.failures())
    return INTERRUPTED_EXIT_CODE if interrupted() else asking.exit_code
