"""Numbered lists to choose from: the models on this machine, and the conversations of the last chats."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from specrun.catalog.here import LocalModel
from specrun.chat import conversation_file
from specrun.display_text import one_line, size_text
from specrun.errors import SpecrunError

_EMBEDDED = "the embedded pair"


def models(found: Sequence[LocalModel], current: str | None = "") -> Table:
    """A table of the models and, last, the embedded pair. The model with the name `current` is marked as in use."""
    table = _numbered()
    rows = [(model.name, size_text(model.n_bytes), model.program or "") for model in found]
    for number, (name, size, program) in enumerate([*rows, (_EMBEDDED, "", "")], start=1):
        mark = "in use" if name == (_EMBEDDED if current is None else current) else program
        table.add_row(str(number), one_line(name), size, mark)
    return table


def conversations(paths: Sequence[Path]) -> Table:
    """A table: when each was written, with which model, how many messages it has, and the last question."""
    table = _numbered()
    for number, path in enumerate(paths, start=1):
        try:
            when = time.strftime("%Y-%m-%d %H:%M", time.localtime(path.stat().st_mtime))
            one = conversation_file.read(path)
        except (OSError, SpecrunError) as error:
            table.add_row(str(number), "", "", str(error))
            continue
        table.add_row(str(number), when, one.target or _EMBEDDED, f"{len(one.messages)} messages", one.question)
    return table


def _numbered() -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right")
    return table
