"""Which model to talk with, where none was named and several are here."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from specrun.catalog.resolve import LocalModel, local_models
from specrun.display_text import one_line, size_text

EMBEDDED = "the embedded pair"


def pick(notes: Console, ask: Callable[[str], str]) -> str | None:
    """The name of the model that the user chooses, None for the embedded pair; nobody is asked if nothing else is here.

    ask: shows a question and returns the line that the user typed; raises EOFError or KeyboardInterrupt.
    """
    models = local_models()
    if not models:
        return None
    notes.print(listed(models))
    while True:
        answer = ask(f"Which model? A number from 1 to {len(models) + 1}, or Enter for 1: ").strip() or "1"
        if answer.isdecimal() and 1 <= int(answer) <= len(models) + 1:
            return models[int(answer) - 1].name if int(answer) <= len(models) else None
        notes.print(Text(f"{one_line(answer)} is none of these numbers", style="red"))


def listed(models: Sequence[LocalModel], current: str | None = "") -> Table:
    """A numbered table of the models and, last, the embedded pair.

    current: the name of the model that is marked as in use; None for the embedded pair, empty for none.
    """
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right")
    in_use = EMBEDDED if current is None else current
    for number, model in enumerate([*models, LocalModel(EMBEDDED, None)], start=1):
        mark = "in use" if model.name == in_use else ""
        table.add_row(str(number), one_line(model.name), size_text(model.n_bytes) if model.n_bytes else "", mark)
    return table
