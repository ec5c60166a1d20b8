"""Writes the answers of `specrun generate` to stdout, and what is to be said about them to stderr."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from specrun import interrupts
from specrun.engine.completion import Completion
from specrun.engine.model import Model
from specrun.engine.request import Request
from specrun.errors import INTERRUPTED_EXIT_CODE
from specrun.interrupts import InterruptFlag
from specrun.views import answer_report, output


class AnswerWriter:
    """Writes an answer to one prompt after the other.

    request: how answers are written; its prompt is ignored.
    raw: whether prompts are continued as they are, without the chat template.
    statistics: whether each answer is followed by its statistics.
    """

    def __init__(self, model: Model, request: Request, raw: bool, statistics: bool) -> None:
        self._model, self._request = model, request
        self._raw, self._statistics = raw, statistics
        self._notices = answer_report.Notices(model)

    def write_text(self, prompt: str) -> int:
        """Write the answer piece by piece. Returns the exit code."""
        completion = self._completion(prompt)

        def end_line() -> None:
            if completion.text and not completion.text.endswith("\n"):
                output.write("\n")

        with interrupts.undone(end_line):
            _run(completion, output.write)
        if not completion.text.endswith("\n"):
            output.write("\n")
        return self._end(completion)

    def write_object(self, prompt: str, **entries: Any) -> int:
        """Write the answer as one JSON object that begins with `entries`. Returns the exit code."""
        completion = self._completion(prompt)
        _run(completion)
        output.write_json(entries | answer_report.as_json(completion))
        return self._end(completion)

    def _completion(self, prompt: str) -> Completion:
        tokens = self._model.prompt_tokens(prompt, self._raw)
        return self._model.complete(replace(self._request, prompt=tokens))

    def _end(self, completion: Completion) -> int:
        lines = self._notices.after(completion)
        if self._statistics:
            lines.append(answer_report.as_text(completion, self._model))
        for line in lines:
            output.note(line)
        return INTERRUPTED_EXIT_CODE if completion.finish_reason == "interrupted" else 0


def _run(completion: Completion, show: Callable[[str], None] | None = None) -> None:
    """Write the answer, and give each piece to `show`. Ctrl-C ends the answer after the pass that is running.

    A line on a terminal says how far the answer is: until the first piece is shown, or all the time without `show`.
    """
    started = time.perf_counter()
    with InterruptFlag() as interrupted:
        pieces = completion.stream(interrupted)
        with output.activity(lambda: answer_report.status(completion, started)):
            first = next(pieces, "") if show else "".join(pieces)
        if show:
            show(first)
            for piece in pieces:
                show(piece)
