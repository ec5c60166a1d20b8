"""Loads the models of a command, and tells the user what they should know before the first text; and asks which model
answers a conversation for which the user named none.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Column, Table
from rich.text import Text

from specrun import kept_facts
from specrun.catalog import cache, embedded, entries, resolve
from specrun.catalog.entries import Entry
from specrun.catalog.here import local_models
from specrun.catalog.hub import is_offline
from specrun.cli.pulling import AskingFetcher, can_ask
from specrun.display_text import one_line, size_text
from specrun.doctor import Finding, installation
from specrun.errors import SpecrunError, UsageError
from specrun.hardware.machine import gpu_driver, nvidia_card, offload_devices
from specrun.llama import devices, library
from specrun.loading.model import Model
from specrun.loading.opening import open_model
from specrun.locations import names_file
from specrun.options.machine_options import MachineOptions
from specrun.options.speculation_options import ModelOptions, SpeculationOptions
from specrun.views import output

if TYPE_CHECKING:
    from specrun.hardware.fit import Fit
    from specrun.loading.local_fit import LocalFits


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
    if _is_news("busy cores", bool(model.threads_notice)) and model.threads_notice:
        output.note(model.threads_notice)
    note_unusable_gpu()
    return model


def _is_own_draft(models: ModelOptions) -> bool:
    target, draft = models.target, models.draft
    if not target or not draft:
        return False
    return target == draft or (names_file(target) and names_file(draft) and Path(target).samefile(draft))


def unusable_gpu() -> Finding | None:
    """Why llama.cpp cannot use the GPU of this machine; None if no GPU is known to be there, or if it can be used."""
    driver, has_nvidia = gpu_driver(), nvidia_card()
    if offload_devices(devices.devices()) or not (driver or has_nvidia):
        return None
    return installation.backends(library.backends(), 0, driver, has_nvidia)


def note_unusable_gpu() -> None:
    """Tell the user about a GPU that cannot be used, unless an earlier run has said the same."""
    found = unusable_gpu()
    if found and _is_news("unusable GPU", found.detail):
        output.note(f"{found.detail}; {found.fix}")


def _is_news(what: str, state: str | bool) -> bool:
    """Whether this state differs from that of the run before, which is kept."""
    of = {"what": what}
    before = kept_facts.recall("said", of, type(state)) or type(state)()
    if before != state:
        kept_facts.remember("said", of, state)
    return before != state


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
