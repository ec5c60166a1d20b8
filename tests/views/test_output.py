"""Text is shown literally, whatever is in it; what takes long is shown on a terminal only, and gone when it is over."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pyte
import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

from specrun.llama import LlamaModel
from specrun.loading.model import Model
from specrun.loading.run_options import RunOptions
from specrun.speculation.method import OFF
from specrun.views import output
from specrun.views.output import LiteralConsole
from tests.waiting import wait_until


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    file = io.StringIO()
    monkeypatch.setattr(output, "stderr", Console(file=file, force_terminal=True, width=60))
    return file


def test_an_activity_is_shown_and_leaves_nothing(terminal: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_SECONDS_BEFORE_ACTIVITY", 0.0)
    with output.progress() as show:
        for text in ("doing this", "doing that"):
            show(text)
            wait_until(lambda text=text: text in terminal.getvalue(), text)
    screen = pyte.Screen(60, 10)
    pyte.Stream(screen).feed(terminal.getvalue().replace("\n", "\r\n"))
    assert not "".join(screen.display).strip()
    assert screen.cursor.y == 0


def test_what_is_over_soon_draws_nothing(terminal: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_SECONDS_BEFORE_ACTIVITY", 60.0)
    with output.progress() as show:
        show("doing this")
    assert terminal.getvalue() == ""


def test_elsewhere_nothing_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr(output, "stderr", Console(file=file))
    monkeypatch.setattr(output, "_SECONDS_BEFORE_ACTIVITY", 0.0)
    with output.progress() as show:
        show("doing this")
    assert file.getvalue() == ""


def test_loading_says_what_and_from_where_and_how_far_it_is(demo_target: Path) -> None:
    shares: list[float] = []
    with LlamaModel(demo_target, progress=shares.append):
        pass
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    shown: list[str] = []
    Model(RunOptions(demo_target, None, (OFF.plan(),)), show=shown.append).close()
    assert shown[0] == f"loading target.gguf from {demo_target.parent}"


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


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_json_is_json_in_any_encoding(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    value = {"é": ["👩", "\ud83d", "\udcff", "\0"]}
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding=encoding, errors="replace"))
    output.write_json(value)
    assert json.loads(written.getvalue()) == value
    with pytest.raises(ValueError, match="not JSON compliant"):
        output.write_json({"rate": float("nan")})
