"""Fetches models that are not on this machine: shows them, asks the user, and shows the progress."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer
from rich.table import Table

from specrun.catalog import cache
from specrun.catalog.cache import Progress
from specrun.catalog.hub import HubName
from specrun.catalog.hub.client import RemoteModel
from specrun.catalog.resolve import Fetcher
from specrun.display_text import one_line, size_text
from specrun.views import output

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

# Off a terminal a line reports progress after every tenth of a file, but not more often than this.
_TENTH = 0.1
_SECONDS_BETWEEN_LINES = 2.0


class AskingFetcher(Fetcher):
    """Asks on a terminal before it fetches, or fetches without asking where `pull` says so."""

    def __init__(self, pull: bool) -> None:
        super().__init__(may_fetch=pull or can_ask())
        self._pull = pull

    def look_up(self, models: Sequence[HubName]) -> list[RemoteModel]:
        with _progress() as progress:
            return [cache.look_up(model, progress) for model in models]

    def fetch(self, models: Sequence[RemoteModel], dry_run: bool = False) -> bool:
        """Show models and fetch them, unless the user declines. dry_run: only show the models."""
        table = Table.grid(padding=(0, 2))
        for model in models:
            n_files = f", {len(model.files)} files" if len(model.files) > 1 else ""
            licence = f"licence: {one_line(model.licence or 'unknown')}"
            table.add_row(model.name, f"{model.repo}{n_files}", size_text(model.bytes), licence)
        output.stderr.print(table)
        free = cache.check_disk(models)
        needed = size_text(sum(cache.missing_bytes(model) for model in models))
        if dry_run or not (self._pull or confirmed(f"Download {needed} ({size_text(free)} are free)?")):
            return False
        try:
            with _progress() as progress:
                for model in models:
                    cache.pull(model, progress)
        except KeyboardInterrupt:
            output.note("stopped; the next pull continues from here")
            raise
        return True


def confirmed(question: str, default: bool = True) -> bool:
    """Ask the user a yes-or-no question on stderr. Ctrl-C and Ctrl-D end the command."""
    return typer.confirm(one_line(question), default=default, err=True)


def can_ask() -> bool:
    """Whether stdin and stderr are terminals, so that a user can answer questions."""
    return sys.stdin is not None and sys.stdin.isatty() and output.stderr.is_terminal


@contextmanager
def _progress() -> Iterator[Progress]:
    """Yields a display of downloads: bars on a terminal, plain lines elsewhere."""
    if not output.stderr.is_terminal:
        yield _Lines()
        return
    from rich import progress as rich_progress

    text, bar = rich_progress.TextColumn("{task.description}", markup=False), rich_progress.BarColumn(bar_width=None)
    numbers = (rich_progress.DownloadColumn(), rich_progress.TransferSpeedColumn(), rich_progress.TimeRemainingColumn())
    with rich_progress.Progress(text, bar, *numbers, console=output.stderr) as bars:
        yield _Bars(bars)


class _Bars(Progress):
    """Shows a rich progress bar for each file, which starts again when the file is checked."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars

    def start(self, what: str, total: int, done: int) -> None:
        self._task = self._bars.add_task(one_line(what), total=total, completed=done)

    def check(self, what: str, total: int) -> None:
        self._bars.reset(self._task, total=total, description=f"{one_line(what)}, checking")

    def checked(self, what: str) -> None:
        self._bars.update(self._task, description=one_line(what))

    def advance(self, n_bytes: int) -> None:
        self._bars.advance(self._task, n_bytes)

    def note(self, text: str) -> None:
        output.note(text)


class _Lines(Progress):
    """Prints a line when a file is started, checked and complete, and after each tenth of a long download."""

    def start(self, what: str, total: int, done: int) -> None:
        self._what, self._total, self._done = what, total, done
        self._print(f": {size_text(total)}" + (f", continuing at {size_text(done)}" if done else ""))

    def check(self, what: str, total: int) -> None:
        self._what, self._total, self._done = what, total, 0
        self._print(": checking")

    def checked(self, what: str) -> None:
        output.note(f"{what}: complete")

    def advance(self, n_bytes: int) -> None:
        self._done += n_bytes
        is_due = self._done >= self._next and time.monotonic() > self._printed_at + _SECONDS_BETWEEN_LINES
        if is_due and self._done < self._total:
            self._print(f": {100 * self._done // self._total} %")

    def note(self, text: str) -> None:
        output.note(text)

    def _print(self, text: str) -> None:
        output.note(self._what + text)
        self._printed_at = time.monotonic()
        self._next = self._done + self._total * _TENTH
