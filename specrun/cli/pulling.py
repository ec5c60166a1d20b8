"""Fetches models that are not on this machine: shows them, asks the user, and shows the progress."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.table import Table

from specrun.cli import output
from specrun.units import size_text

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

    from specrun.catalog.download import Progress
    from specrun.catalog.hub import RemoteModel
    from specrun.catalog.names import HubName
    from specrun.catalog.resolve import Choice

# Off a terminal a line reports progress after every tenth of a file, but not more often than this.
_TENTH = 0.1
_SECONDS_BETWEEN_LINES = 2.0


def local_pair(target: str | None, draft: str | None, drafting: bool, pull: bool) -> tuple[Path, Path | None]:
    """The files of a target and its draft (None without one), fetched first if the user agrees.

    target: name of the target; None: the embedded pair.
    draft: name of the draft; "none": no draft; None: the draft made for this target, else one that the catalog
    recommends.
    drafting: False if the command needs no draft.
    pull: fetch without asking.

    Raises UsageError for an unknown name, MissingModelError if the user declined or cannot be asked, PairError before
    fetching a draft that does not fit, and HubError.
    """
    from specrun.catalog import embedded, resolve

    if draft is None and drafting and (pair := _made_pair(target)):
        return pair
    if not target:
        return embedded.TARGET, None if draft == resolve.NO_DRAFT else embedded.DRAFT
    draft_name = draft if drafting else resolve.NO_DRAFT
    choice = resolve.choose(target, draft_name, may_fetch=pull or can_ask())
    resolve.check_choice(choice)
    if choice.missing and (pull or can_ask()):
        remote = look_up(choice.missing)
        resolve.check_remote(choice, remote)
        if fetch(remote, ask=not pull):
            choice = resolve.choose(target, draft_name, may_fetch=True)
    if choice.missing:
        if choice.target.path is None or not choice.recommended:
            raise resolve.missing_error(choice.missing)
        choice = resolve.Choice(choice.target, None, recommended=True)
    assert choice.target.path is not None
    _note_draft(choice)
    return choice.target.path, choice.draft.path if choice.draft else None


def look_up(models: Sequence[HubName]) -> list[RemoteModel]:
    """Look up sizes, files and licences of models on the hub. Raises HubError."""
    from specrun.catalog import download

    with _progress() as progress:
        return [download.look_up(model, progress) for model in models]


def fetch(models: Sequence[RemoteModel], ask: bool, dry_run: bool = False) -> bool:
    """Show models and fetch them. Returns whether they were fetched. Raises HubError.

    ask: ask the user before fetching. dry_run: only show the models.
    """
    from specrun.catalog import download

    _print_models(models)
    free = download.check_disk(models)
    needed = sum(download.missing_bytes(model) for model in models)
    if dry_run or (ask and not confirmed(f"Download {size_text(needed)} ({size_text(free)} are free)?")):
        return False
    try:
        with _progress() as progress:
            for model in models:
                download.pull(model, progress)
    except KeyboardInterrupt:
        output.note("stopped; the next pull continues from here")
        raise
    return True


def confirmed(question: str, default: bool = True) -> bool:
    """Ask the user a yes-or-no question on stderr. Ctrl-C and Ctrl-D end the command."""
    return typer.confirm(question, default=default, err=True)


def can_ask() -> bool:
    """Whether stdin and stderr are terminals, so that a user can answer questions."""
    return sys.stdin is not None and sys.stdin.isatty() and output.stderr.is_terminal


def _made_pair(target: str | None) -> tuple[Path, Path] | None:
    """The target's file and the draft that `specrun models make-draft` made from it; None unless both exist."""
    from specrun.catalog import embedded, made, resolve

    path = resolve.locate(target).path if target else embedded.TARGET
    draft = made.find(path) if path else None
    if path is None or draft is None:
        return None
    if not draft.path.exists():
        output.note(f"the made draft {draft.path} is gone; `specrun models make-draft` makes it again")
        return None
    output.note(f"draft: made from {target or 'the embedded target'}, {draft.how} (--draft none does without)")
    return path, draft.path


def _note_draft(choice: Choice) -> None:
    from specrun.catalog import resolve

    if not choice.recommended:
        return
    if choice.draft:
        output.note(f"draft: {choice.draft.name}, recommended for {choice.target.name} (--draft none does without)")
    elif names := resolve.recommended_drafts(choice.target):
        output.note(f"{names[0]} could draft for {choice.target.name}; fetch it with `specrun pull {names[0]}`")


def _print_models(models: Sequence[RemoteModel]) -> None:
    """Print name, repository, size and licence of each model on stderr."""
    table = Table.grid(padding=(0, 2))
    for model in models:
        n_files = f", {len(model.files)} files" if len(model.files) > 1 else ""
        table.add_row(
            model.name, f"{model.repo}{n_files}", size_text(model.bytes), f"licence: {model.licence or 'unknown'}"
        )
    output.stderr.print(table)


@contextmanager
def _progress() -> Iterator[Progress]:
    """Yields a display of downloads: bars on a terminal, plain lines elsewhere."""
    if not output.stderr.is_terminal:
        yield _Lines()
        return
    from rich import progress as rich_progress

    columns = (
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(bar_width=None),
        rich_progress.DownloadColumn(),
        rich_progress.TransferSpeedColumn(),
        rich_progress.TimeRemainingColumn(),
    )
    with rich_progress.Progress(*columns, console=output.stderr) as bars:
        yield _Bars(bars)


class _Bars:
    """Shows a rich progress bar for each file, which starts again when the file is checked."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars

    def start(self, what: str, total: int, done: int) -> None:
        self._task = self._bars.add_task(what, total=total, completed=done)

    def check(self, what: str, total: int) -> None:
        self._bars.reset(self._task, total=total, description=f"{what}, checking")

    def checked(self, what: str) -> None:
        self._bars.update(self._task, description=what)

    def advance(self, n_bytes: int) -> None:
        self._bars.advance(self._task, n_bytes)

    def note(self, text: str) -> None:
        output.note(text)


class _Lines:
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
