"""Writes the answers of `specrun generate`: to one prompt, or to lines of prompts, several of which are answered at a
time.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any, TypeAlias

from specrun.cli.answers import AnswersFile, Printed, PromptLine, digest
from specrun.decoding.completion import Completion
from specrun.decoding.generation import Request
from specrun.display_text import counted, duration_text, rate_text
from specrun.errors import INTERRUPTED_EXIT_CODE, ModelFileError, PromptError, SpecrunError
from specrun.interrupts import InterruptFlag, undone
from specrun.loading.many import write_many
from specrun.loading.model import Model
from specrun.long_run import left_text
from specrun.options.sampling_options import Thinking
from specrun.reading.deltas import Delta
from specrun.views import output
from specrun.views.answer_report import Notices, as_json, as_text, status
from specrun.views.answer_stream import PlainAnswer

_GATHER_S = 0.3  # from one line to the next, where they all are there
_NAMED = 5  # lines that failed, as a message names them
_POLL_S = 0.1  # between looks at whether the user has asked for the end, while no line comes


class AnswerWriter:
    """Writes an answer to one prompt after the other on stdout, and what is to be said about them on stderr.

    request: how answers are written; its prompt is ignored. raw: no chat template, and nothing in a text is thinking.
    system: the system message, if any. think: as `--think` has it. stats: statistics follow an answer.
    """

    def __init__(
        self, model: Model, request: Request, raw: bool, system: str | None, think: Thinking, stats: bool
    ) -> None:
        self.model, self._request, self._raw, self._system, self._stats = model, request, raw, system, stats
        self._form = raw, system, think == "off"  # of prompts
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
            completion = self.model.complete(self.asked(prompt)[0])
        shown = PlainAnswer(self._shows_thinking)
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
            output.write_json(as_json(completion, self.model, answer, thinking))
        if self._stats and self.model.prompt_states:  # which say what this text's prompt leaves on disk
            self.model.prompt_states.close(self.model.engine)
        for line in self._remarks(completion, answer, f"the text is cut off: {self.full_context}"):
            output.note(line)
        return INTERRUPTED_EXIT_CODE if completion.finish_reason == "interrupted" else 0

    def asked(self, prompt: str) -> tuple[Request, Callable[[str], tuple[str, str]]]:
        """A request that answers the prompt, and what parts the text of its answer into the answer and what the model
        thought before it. Raises PromptError.
        """
        if self._session:
            return self._session.single(prompt)
        tokens = self.model.prompt_tokens(prompt, self._raw, self._system)
        return replace(self._request, prompt=tokens), lambda text: (text, "")

    def answered(self, completion: Completion, answer: str, thinking: str) -> tuple[dict[str, Any], list[str]]:
        """The object of a completion, and what is to be said about it."""
        return as_json(completion, self.model, answer, thinking), self._remarks(completion, answer)

    @property
    def full_context(self) -> str:
        """Why a text ended with `context`, and what to do."""
        return f"the context of {self.model.engine.ctx_size} tokens is full; give a larger --ctx-size"

    @property
    def made_from(self) -> str:
        """A digest of what texts depend on besides their prompts."""
        model, settings = self.model, self.model.engine.target.context.config.settings
        lossy = [str(plan) for plan in model.plans.candidates if not plan.method.lossless]
        llama = model.llama_model
        run = llama.file.identity, llama.chat_template, model.engine.ctx_size, settings.type_k, settings.type_v
        return digest(run, lossy, lossy and model.draft, self._request, self._form)

    def _written(self, completion: Completion, interrupted: Callable[[], bool]) -> Iterator[Delta]:
        if self._session:
            return self._session.read(completion, interrupted)
        return (Delta(content=piece) for piece in completion.stream(interrupted))

    def _remarks(self, completion: Completion, answer: str, full: str = "") -> list[str]:
        lines = self._notices.after(completion, answer, full)
        return [*lines, as_text(completion, self.model)] if self._stats else lines


class Lines:
    """Lines of prompts as they come, read in a thread of its own, so that answers are written meanwhile.

    known: all lines, if the end came at once, as from a file, although none is taken yet; None where more may come.
    """

    def __init__(self, lines: Iterator[PromptLine]) -> None:
        self._queue: queue.SimpleQueue[PromptLine | BaseException | None] = queue.SimpleQueue()
        self._first: deque[PromptLine] = deque()  # that were taken before they were asked for
        self._has_ended = False
        threading.Thread(target=self._read, args=(lines,), daemon=True).start()
        while not self._has_ended and (line := self._next(_GATHER_S)):
            self._first.append(line)
        self.known = list(self._first) if self._has_ended else None

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


# A line whose answer is written: its number, itself, and what divides its text.
_Asked: TypeAlias = tuple[int, PromptLine, Callable[[str], tuple[str, str]]]


@dataclass
class _Asking:
    """The source of texts for `write_many`. Lines that cannot be answered end here, with their errors."""

    lines: Lines
    writer: AnswerWriter
    answers: Printed | AnswersFile
    n_taken: int = 0
    n_left_out: int = 0  # as they have answers
    failed: list[int] = field(default_factory=list)  # the numbers of their lines
    n_done: int = 0
    n_cut: int = 0  # texts that Ctrl-C ended, and that are written
    n_full: int = 0  # texts that ended because the context was full
    n_tokens: int = 0
    n_ended: int = 0  # tokens of texts that ended by themselves
    n_lost: int = 0  # tokens of texts that Ctrl-C ended, and that are not written
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
        self.answers.put(number, line, line.place | {"error": str(error)})
        self.exit_code = error.exit_code
        self.failed.append(line.number)

    def add(self, asked: _Asked, found: Completion | PromptError) -> None:
        number, line, parts = asked
        if isinstance(found, PromptError):
            self.fail(number, line, found)
            return
        value, notes = self.writer.answered(found, *parts(found.text))
        is_put = self.answers.put(number, line, line.place | value)
        for note in notes:
            output.note(note)
        is_cut = found.finish_reason == "interrupted"
        self.n_done += not is_cut
        self.n_ended += 0 if is_cut else found.statistics.completion_tokens
        self.n_lost += found.statistics.completion_tokens if is_cut and not is_put else 0
        self.n_cut += is_cut and is_put
        self.n_full += found.finish_reason == "context"

    def count(self, n_tokens: int) -> None:
        self.n_tokens += n_tokens

    def progress(self) -> str:
        """How far it is, for a line on a terminal."""
        done, left = counted(self.n_done, "text"), ""
        if (known := self.lines.known) is not None:
            n_all = len(known) - self.n_left_out - len(self.failed)
            done, n_left = f"{self.n_done} of {counted(n_all, 'text')}", n_all - self.n_done
            # Several texts are written at a time, so what is written of those that have not ended counts, too.
            n_tokens = max(self.n_ended / max(self.n_done, 1) * n_all - self.n_tokens, 0.0)
            left = left_text(n_tokens * self._seconds / max(self.n_tokens, 1)) if self.n_done and n_left else ""
        return f"{done}, {self._rate} tokens/s{left}, {self.answers.after_ctrl_c}"

    def summary(self) -> str:
        """What was written, for a line at the end."""
        written = f"{counted(self.n_done + self.n_cut, 'text')}, {counted(self.n_tokens, 'token')}"
        lost = f" ({self.n_lost} of them of texts that had not ended)" if self.n_lost else ""
        return f"{written}{lost} in {duration_text(self._seconds)}, {self._rate} tokens/s"

    def ended(self) -> str:
        """What became of the texts of a run that Ctrl-C ended."""
        n, known = self.n_left_out + self.n_done, self.lines.known
        texts = counted(n, "text") if known is None else f"{n} of {counted(len(known), 'text')}"
        return self.answers.ended(texts, self.n_cut)

    def cut_off(self) -> str:
        """How many texts the context had no room for."""
        texts = f"{self.n_full} of {counted(self.n_done, 'text')} cut off"
        return f"{texts}: {self.writer.full_context}{self.answers.if_otherwise}"

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


def write_lines(writer: AnswerWriter, lines: Lines, answers: Printed | AnswersFile) -> int:
    """Write one JSON object for each line. A line that fails gets an object with `error` and decides the exit code."""
    if isinstance(answers, AnswersFile):
        answers.begin(writer.made_from)
    asking = _Asking(lines, writer, answers)
    may_show = isinstance(answers, AnswersFile) or not output.stdout.is_terminal
    shown = output.activity(asking.progress) if may_show else nullcontext()
    with InterruptFlag(output.stopping) as interrupted, shown:
        for asked, found in write_many(writer.model, asking, interrupted=interrupted, count=asking.count):
            asking.add(asked, found)
    output.hint(asking.summary())
    if interrupted():
        output.note(asking.ended())
    if asking.n_full:
        output.note(asking.cut_off())
    if asking.failed:
        output.note(asking.failures())
    return INTERRUPTED_EXIT_CODE if interrupted() else asking.exit_code
