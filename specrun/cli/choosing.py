"""Which model answers a conversation for which the user named none: one that is here, or one to download."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from specrun.catalog import cache, download, embedded, entries
from specrun.catalog.names import of_entry
from specrun.catalog.resolve import local_models
from specrun.cli.pulling import can_ask
from specrun.display_text import one_line, size_text
from specrun.engine.local_fit import LocalFits
from specrun.errors import UsageError
from specrun.views import output

# For each of these sizes of a download, in bytes, a model is offered: of those that fit, the one that most people run,
# which the catalog has first.
_DOWNLOADS = (3e9, 10e9, 40e9)
_LEAST_RATE = 4.0  # tokens/s by plain decoding, which is about as fast as people read
_CONNECTION = 100e6  # bits a second, for the time that a download takes


@dataclass(frozen=True)
class Offer:
    """A model that the user can choose. name: what --target takes. about: what to know of it, for people."""

    name: str
    n_bytes: int | None
    about: str


def target_of(named: str | None) -> str | None:
    """The target that is named, or that the user chooses from a list on the terminal; None for the embedded pair.

    Raises UsageError where none is named and nobody is there to choose.
    """
    if named:
        return None if embedded.is_meant(named) else named
    if not can_ask():
        raise UsageError(
            "no model is named; give one with --target, such as --target qwen3.5-4b (`specrun models list` shows what "
            f"fits this machine), or --target {embedded.NAME} for the demo pair, which only continues Python code"
        )
    offers = [Offer(model.name, model.n_bytes, "on this machine") for model in local_models()]
    offers += _suggestions()
    offers.append(Offer(embedded.NAME, None, "demo: continues Python code, cannot answer"))
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right")
    table.add_column(overflow="fold", ratio=1)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold", ratio=2)
    for number, offer in enumerate(offers, start=1):
        size = size_text(offer.n_bytes) if offer.n_bytes else ""
        table.add_row(str(number), Text(one_line(offer.name)), size, offer.about)
    output.stderr.print(table)
    output.note("tokens/s: about, without speculation; minutes: to download at 100 Mbit/s")
    while True:
        output.stderr.print(f"Which model? A number from 1 to {len(offers)}, or Enter for 1: ", end="")
        answer = input().strip() or "1"
        if answer.isdecimal() and 1 <= int(answer) <= len(offers):
            return target_of(offers[int(answer) - 1].name)
        output.stderr.print(Text(f"{one_line(answer)} is none of these numbers", style="red"))


def _suggestions() -> Iterator[Offer]:
    """For each size of a download, the first model of the catalog that is not here and fits the memory and the disk."""
    catalog = entries.catalog()
    fits = LocalFits.now(catalog)
    free, least = download.free_bytes(), 0.0
    for most in _DOWNLOADS:
        for entry in catalog.values():
            found, n_bytes = fits.of(entry, None), entry.expected_bytes
            if not (entry.verified and found and n_bytes) or cache.find(of_entry(entry)):
                continue
            in_memory = found.fits not in ("no", "streamed")
            if least < n_bytes <= min(most, free) and in_memory and found.tokens_per_second >= _LEAST_RATE:
                minutes = 8 * n_bytes / _CONNECTION / 60
                about = f"{found.tokens_per_second:.0f} tokens/s here, {minutes:.0f} min to download"
                yield Offer(entry.alias, n_bytes, about)
                break
        least = most
