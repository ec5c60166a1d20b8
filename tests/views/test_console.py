"""Text is shown literally, whatever is in it."""

from __future__ import annotations

import io

from rich.table import Table
from rich.text import Text

from specrun.views.console import LiteralConsole


def shown(*what: object) -> str:
    file = io.StringIO()
    LiteralConsole(file=file, force_terminal=True, color_system=None, width=60).print(*what)
    return file.getvalue()


def test_markup_and_emoji_codes_are_text() -> None:
    table = Table.grid()
    table.add_row("[/] [red]x[/red] :smile:")
    assert shown(table).strip() == shown("[/] [red]x[/red] :smile:").strip() == "[/] [red]x[/red] :smile:"


def test_commands_for_the_terminal_are_shown() -> None:
    for what in ("\x1b[2J\u202e", Text("\x1b[2J\u202e")):
        assert shown(what) == "\\u001b[2J\\u202e\n"
