"""The models of a command: asks which one answers, where none is named, and whether to fetch what is missing; and loads
them.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Column, Table
from rich.text import Text

from specrun.catalog import cache, embedded, entries, resolve
from specrun.catalog.cache import Progress
from specrun.catalog.entries import Entry
from specrun.catalog.here import local_models
from specrun.catalog.hub import is_offline
from specrun.catalog.hub.client import RemoteModel
from specrun.cli.doctor import is_news, note_unusable_gpu
from specrun.display_text import one_line, size_text
from specrun.errors import SpecrunError, UsageError
from specrun.locations import names_file
from specrun.options.machine_options import MachineOptions
from specrun.options.speculation_options import ModelOptions, SpeculationOptions
from specrun.views import output

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

    from specrun.hardware.fit import Fit
    from specrun.loading.local_fit import LocalFits
    from specrun.loading.model import Model


def opened(
    models: ModelOptions,
    speculation: SpeculationOptions,
    machine: MachineOptions,
    temperature: float,
    is_chat: bool = False,
    note: Callable[[str], None] = output.note,
    **further: Any,
) -> Model:
    """What `open_model` gives, with questions and progress on stderr. is_chat: whether prompts are messages, which take
    a chat template. note: told what the user may want to know. further: the other arguments of `open_model`.
    """
    from specrun.loading.opening import open_model

    if _is_own_draft(models):
        output.hint(
            f"{models.target} is its own draft, which cannot be faster; name a smaller --draft, or --draft none"
        )
    asked = models, speculation, machine, temperature, AskingFetcher(models.pull), note
    model = open_model(*asked, progress=output.progress, **further)
    for notice in model.notices:
        note(notice)
    if is_chat and model.llama_model.chat_template is None:
        output.note("the model has no chat template, so ChatML is used; --chat-template names another")
    # After `specrun tune` the notice also says that what it measured waits.
    if is_news("busy cores", model.threads_notice or "") and model.threads_notice:
        output.note(model.threads_notice)
    note_unusable_gpu()
    return model


def _is_own_draft(models: ModelOptions) -> bool:
    target, draft = models.target, models.draft
    if not target or not draft:
        return False
    return target == draft or (names_file(target) and names_file(draft) and Path(target).samefile(draft))


# For each of these sizes of a download, in bytes, a model is offered: of those that fit, the one that most people run,
# which the catalog has first.
_DOWNLOADS = (3e9, 10e9, 40e9)
_LEAST_RATE = 4.0  # tokens/s by plain decoding, which is about as fast as people read
_CONNECTION = 100e6  # bits a second, for the time that a download takes
_MOST_LOCAL = 9  # models on this machine that are shown


@dataclass(frozen=True)
class Offer:
    """A model that the user can choose. name: what --target takes. about: what to know of it, for people."""

    name: str
    n_bytes: int | None
    about: str
    fit: Fit | None = None


def target_of(named: str | None) -> str | None:
    """The target that is named, or that the user chooses from a list on the terminal; None for the embedded pair.

    Raises UsageError where none is named and nobody is there to choose, and typer.Exit for a user who leaves.
    """
    if named:
        return None if embedded.is_meant(named) else named
    if not can_ask():
        recommended = entries.recommended(entries.catalog())
        such = f", such as --target {recommended.alias}" if recommended else ""
        raise UsageError(
            f"no model is named; give one with --target{such} (`specrun models list` shows what fits this machine), or "
            f"--target {embedded.NAME} for the demo pair, which only continues Python code"
        )
    groups = _groups()
    offers = [offer for group in groups.values() for offer in group]
    output.stderr.print(_menu(groups))
    output.note("tok/s: tokens a second, about, without speculation; min: to download at 100 Mbit/s")
    while True:
        output.stderr.print("Which model? A number, a name or a path (Enter for 1, q to leave): ", end="")
        answer = input().strip() or "1"
        if answer in ("q", "quit", "exit"):
            raise typer.Exit
        try:
            name = _chosen(answer, offers)
        except SpecrunError as error:
            output.stderr.print(Text(one_line(str(error)), style="red"))
        else:
            return target_of(name)


def _chosen(answer: str, offers: Sequence[Offer]) -> str:
    """The name of what was typed: the number of an offer, a name or a path. Raises SpecrunError for what is nothing."""
    if answer.isdecimal():
        if not 1 <= int(answer) <= len(offers):
            raise UsageError(f"{answer} is none of the numbers from 1 to {len(offers)}")
        return offers[int(answer) - 1].name
    model = resolve.locate(answer)
    if model.path and not model.path.is_file():
        raise UsageError(f"{answer} is no file")
    return answer


def _groups() -> dict[str, list[Offer]]:
    """What is offered, by headings. What is on this machine comes first, and of it what came last."""
    from specrun.loading.local_fit import LocalFits

    catalog = entries.catalog()
    fits = LocalFits.now(catalog)
    with output.progress() as show:
        show("reading the models on this machine ...")
        local = local_models()
        here = [
            Offer(model.name, model.n_bytes, model.program or "", fits.of(model.entry, model.path))
            for model in local[:_MOST_LOCAL]
        ]
    more = f"; {len(local) - len(here)} more: specrun models list --here" if len(local) > len(here) else ""
    names = {model.entry.alias for model in local if model.entry}
    groups = {
        f"on this machine{more}": here,
        "to download": [] if is_offline() else list(_downloads(catalog.values(), fits, names)),
        "to try things out": [Offer(embedded.NAME, None, "continues Python code, cannot answer")],
    }
    return {heading: offers for heading, offers in groups.items() if offers}


def _menu(groups: dict[str, list[Offer]]) -> Table:
    from specrun.views.models_table import PLACES, about_rate

    right, words = partial(Column, justify="right", no_wrap=True), partial(Column, overflow="fold")
    table = Table.grid(right(), words(), right(), Column(no_wrap=True), right(), words(), padding=(0, 2))
    table.add_row("", "", "size", "fits", "tok/s", style="dim")
    numbers = itertools.count(1)
    for heading, offers in groups.items():
        table.add_row("", heading, style="dim")
        for offer in offers:
            size = size_text(offer.n_bytes) if offer.n_bytes else ""
            fits = (PLACES[offer.fit.fits], about_rate(offer.fit.tokens_per_second)) if offer.fit else ("", "")
            table.add_row(str(next(numbers)), Text(one_line(offer.name)), size, *fits, offer.about)
    return table


def _downloads(catalog: Iterable[Entry], fits: LocalFits, here: set[str]) -> Iterator[Offer]:
    """A small model and the best one that fit memory and disk, and the one that is recommended, of those not here."""
    from specrun.loading.local_fit import IN_MEMORY

    free, least, sized = cache.free_bytes(), 0.0, list[str]()
    missing = {e.alias: (e, found) for e in catalog if e.alias not in here and (found := fits.of(e, None))}
    for most in _DOWNLOADS:
        for entry, found in missing.values():
            is_quick = found.fits in IN_MEMORY and found.tokens_per_second >= _LEAST_RATE
            if entry.verified and is_quick and least < (entry.expected_bytes or 0) <= min(most, free):
                sized.append(entry.alias)
                break
        least = most
    words = {sized[0]: "small and quick"} if len(sized) > 1 else {}
    words |= dict.fromkeys(sized[-1:], "the best that fits")
    for entry, found in missing.values():
        if entry.recommended and found.fits != "no" and (entry.expected_bytes or 0) <= free:
            words[entry.alias] = f"recommended, draft {entry.drafts[0]}" if entry.drafts else "recommended"
    for alias, about in words.items():
        entry, found = missing[alias]
        minutes = 8 * (entry.expected_bytes or 0) / _CONNECTION / 60
        yield Offer(alias, entry.expected_bytes, f"{about}, {minutes:.0f} min", found)


# Off a terminal a line reports progress after every tenth of a file, but not more often than this.
_TENTH = 0.1
_SECONDS_BETWEEN_LINES = 2.0


class AskingFetcher(resolve.Fetcher):
    """Asks on a terminal before it fetches, or fetches without asking where `pull` says so."""

    def __init__(self, pull: bool) -> None:
        super().__init__(pull or can_ask(), _progress)
        self._pull = pull

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
            return super().fetch(models)
        except KeyboardInterrupt:
            output.note("stopped; the next pull continues from here")
            raise


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
