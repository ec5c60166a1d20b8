"""Write the table of docs/models.md: which models to take for a card of 8, 12, 16 or 24 GB, and for none.

    python scripts/model_guide.py          # puts the table into docs/models.md
    python scripts/model_guide.py --print  # prints it

Nothing is chosen by hand. For every model of models.toml, placement says where its weights would lie beside those of
its draft, and reading them once gives the time of a token (specrun/hardware/fit.py, with assumed rates). Each row is
then the answer to one question. Of models that answer it equally well, the first in models.toml is taken.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from specrun.catalog.entries import Entry, catalog
from specrun.hardware.fit import Fit, Rates
from specrun.hardware.machine import Device
from specrun.loading.local_fit import LocalFits
from specrun.views.answer_report import layers

DOCUMENT = Path(__file__).parents[1] / "docs" / "models.md"
BEGIN, END = "<!-- made by scripts/model_guide.py -->\n", "<!-- end of what it made -->"

GiB = 2**30
FREE_RAM = 0.85  # of the RAM that is built in
CARDS = (8, 12, 16, 24)  # GiB, beside RAM_BESIDE
RAM_BESIDE = 32
ALONE = (16, 32)  # GiB of RAM without a card
SLOWEST = 1.0  # tokens/s of plain decoding; a tree makes two to four times that of it
SLOWEST_MIXTURE = 5.0  # a mixture is rarely drafted for


@dataclass(frozen=True)
class Choice:
    """A model for a machine, and the question that it answers."""

    question: str
    entry: Entry
    found: Fit


def machine(card: int, ram: int) -> LocalFits:
    """A machine with a card of so many GiB, 0 for none, and so many GiB of RAM."""
    size = card * GiB
    gpus = (Device(f"{card} GB", "", "GPU", "CUDA", size, size),) if card else ()
    return LocalFits(catalog(), gpus, int(ram * GiB * FREE_RAM), Rates())


def choices(here: LocalFits) -> Iterator[Choice]:
    """The answers for a machine, each model once."""
    fits = [(entry, found) for entry in here.catalog.values() if (found := here.of(entry, None))]
    pairs = [(entry, found) for entry, found in fits if entry.kind != "moe" and entry.drafts]
    usable = [pair for pair in pairs if pair[1].tokens_per_second >= SLOWEST]
    mixtures = [(entry, found) for entry, found in fits if entry.kind == "moe" and found.fits not in ("streamed", "no")]
    quick = [(entry, found) for entry, found in mixtures if found.tokens_per_second >= SLOWEST_MIXTURE]
    questions = [
        ("the largest pair in VRAM", [pair for pair in pairs if pair[1].fits == "vram"]),
        ("the pair that most run", usable[:1]),
        ("the largest pair", usable),
        ("the mixture that most run", quick[:1]),
        ("the largest mixture", quick),
    ]
    shown: set[str] = set()
    for question, answers in questions:
        if not answers:
            continue
        entry, found = max(answers, key=lambda answer: answer[0].shape.parameters if answer[0].shape else 0)
        if entry.alias not in shown:
            shown.add(entry.alias)
            yield Choice(question, entry, found)


def why(choice: Choice) -> str:
    """Where the weights lie, and what that means for drafting."""
    placement, entry = choice.found.placement, choice.entry
    where = layers(placement).removeprefix("target: ")
    if placement.gpus:
        with_draft = " with the draft" if placement.draft_in_vram else ""
        where += f"; {placement.vram_bytes / 1e9:.1f} GB of VRAM{with_draft}"
    if entry.kind == "moe":
        return f"{where}. Each drafted token reads further experts: only long copies of the text pay"
    trees = "trees" if entry.trees else "chains"
    if choice.found.fits == "vram":
        return f"{where}. Short {trees} pay"
    return f"{where}. Every pass waits for weights in RAM: large {trees} pay".replace("large chains", "long chains")


def table() -> str:
    """The table in Markdown."""
    lines = [
        "| card | question | target | draft | plain tokens/s | where it lies, and what that means |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    machines = [(card, RAM_BESIDE) for card in CARDS] + [(0, ram) for ram in ALONE]
    for card, ram in machines:
        name = f"{card} GB" if card else f"none, {ram} GB of RAM"
        for choice in choices(machine(card, ram)):
            draft = f"`{choice.entry.drafts[0]}`" if choice.entry.drafts else "the text"
            rate = choice.found.tokens_per_second
            shown = f"{rate:.0f}" if rate >= 10 else f"{rate:.1f}"
            lines.append(f"| {name} | {choice.question} | `{choice.entry.alias}` | {draft} | {shown} | {why(choice)} |")
            name = ""
    return "\n".join(lines) + "\n"


def document(text: str) -> str:
    """The document with the present table in place of the one that it has."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--print", action="store_true", help="print the table only")
    if parser.parse_args(arguments).print:
        print(table(), end="")
    else:
        DOCUMENT.write_text(document(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
