"""What all parts share: what was asked for, how long they may take, and how they call processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_bench.models import Models
from specrun.catalog.gguf_file import GgufFile
from specrun.errors import LlamaError, SpecrunError
from specrun.long_run import Run
from specrun.processes import child_process

SCRIPTS = Path(__file__).parents[1]
HALF, FIT = "half", "fit"  # of the layers lie in VRAM; as many as fit


class PartError(SpecrunError):
    """A part, or a row of it, that cannot be measured here."""


class OutOfTimeError(PartError):
    """The part's time was over before its process had an answer."""


@dataclass(frozen=True)
class Question:
    """What a process of its own is to measure. `Bench.answers` adds the seconds that it may take.

    what: for people. facts: what the row says beside the answer. environment: variables that the process has, too.
    """

    module: str  # whose `serve` answers
    what: str
    request: Mapping[str, Any]
    facts: Mapping[str, Any]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Bench:
    """A part at work. Its run has the part's deadline.

    layers: of `tune` and `peers`, each `half`, `fit` or a number. sms: numbers of multiprocessors that a patched build
    takes the card to have; empty for the card's own. backend: of the card, such as `CUDA`. quick: whether a few rows
    are enough.
    """

    models: Models
    run: Run
    work: Path
    backend: str
    layers: tuple[str, ...] = (HALF, FIT)
    sms: tuple[int, ...] = ()
    build_dir: Path | None = None
    quick: bool = False
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Tell the user a sentence that the page will have, too."""
        self.notes.append(text)
        self.run.note(text)

    @property
    def seconds_left(self) -> float:
        """Seconds until the part's deadline, at least 0."""
        return max(self.run.deadline - time.perf_counter(), 0.0)

    def share(self, n_left: int) -> float:
        """Seconds for one of so many things of this part that are left to do."""
        return self.seconds_left / max(n_left, 1)

    def answer(self, module: str, request: Mapping[str, Any], **environment: str) -> dict[str, Any]:
        """What `serve` of a module answers in a process of its own, which has these variables, too.

        Raises OutOfTimeError at the part's deadline, and LlamaError if there is no answer.
        """

        def wait() -> None:
            if self.run.is_over():
                raise OutOfTimeError("the time of this part was over")

        with _variables(environment):
            return child_process.answer(module, request, "the measurement", wait, debug=False)

    def answers(self, part: str, questions: Sequence[Question]) -> Iterator[dict[str, Any]]:
        """A row for each question that a process of its own answers before the part's deadline. part: for people."""
        for i, one in enumerate(questions):
            self.run.show(f"{part}: {one.what}, {i + 1} of {len(questions)}")
            request = {**one.request, "seconds": self.share(len(questions) - i)}
            try:
                yield {**one.facts, **self.answer(one.module, request, **one.environment)}
            except OutOfTimeError:
                self.note(f"time for {i} of {len(questions)} combinations; more --minutes measure all")
                return
            except LlamaError as error:
                self.note(f"{one.what}: {error}")

    def output(self, words: Sequence[object], deadline: float, given: str = "", **environment: str) -> str:
        """What a Python program prints that reads `given`. deadline: its end at the latest, a value of
        `time.perf_counter()`.

        Raises OutOfTimeError at the deadline, when the program and its children are ended, and PartError if it fails.
        """
        command = [sys.executable, *map(str, words)]
        process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, encoding="utf-8", errors="replace", start_new_session=True,
        )  # fmt: skip
        try:
            said, errors = process.communicate(given, timeout=max(deadline - time.perf_counter(), 0.1))
        except subprocess.TimeoutExpired as error:
            raise OutOfTimeError(f"`{_named(words)}` was not ready when its time was over") from error
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if process.returncode:
            last = (errors.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
            raise PartError(f"`{_named(words)}` failed: {last}")
        return said

    def specrun(self, data: Path, command: str, layers: str, *options: str, deadline: float) -> Any:
        """What a command of specrun prints as JSON on the pair. data: the folder with its profiles."""
        return json.loads(self.printed(data, command, layers, *options, deadline=deadline))

    def printed(self, data: Path, command: str, layers: str, *options: str, deadline: float, given: str = "") -> str:
        """What a command of specrun that reads `given` prints on the pair. data: the folder with its profiles."""
        data.mkdir(parents=True, exist_ok=True)
        pair = self.models.pair
        words = ["-m", "specrun", command, "--target", pair.target, "--draft", pair.draft, "--raw", *options]
        words += ["--ctx-size", "2048", *self.n_layers_option("-ngl", layers)]
        return self.output(words, deadline, given, SPECRUN_DATA_DIR=str(data))

    def n_layers_option(self, option: str, layers: str) -> list[str]:
        """The option with a number of the pair's layers in VRAM; nothing for as many as fit."""
        if layers == FIT:
            return []
        n = (GgufFile.read(self.models.pair.target).n_layers + 1) // 2 if layers == HALF else int(layers)
        return [option, str(n)]


def _named(words: Sequence[object]) -> str:
    """A program as messages name it: a script, or a command of specrun."""
    shown = [str(word) for word in words]
    return " ".join(shown[1:3]) if shown[0] == "-m" else Path(shown[0]).name


@contextmanager
def _variables(values: Mapping[str, str]) -> Iterator[None]:
    """A block in which the environment has these values."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
