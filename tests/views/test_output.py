"""Text is shown literally, whatever is in it; what takes long is shown on a terminal only, and gone when it is over.
Tables at any width: no line is too long, no word is broken, and nothing is lost but what is named as left out.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from threading import Event

import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from specrun.llama import LlamaModel
from specrun.loading.model import Model
from specrun.loading.run_options import RunOptions
from specrun.speculation.method import OFF
from specrun.views import output
from specrun.views.output import FittingTable, LiteralConsole, facts
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


class Written(io.StringIO):
    """A file that knows in which pieces it was written."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[str] = []

    def write(self, text: str) -> int:
        self.pieces.append(text)
        return super().write(text)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """The seconds that were waited between lines, of which no time goes by; the eighth wait is the last."""
    waits: list[float | None] = []

    class Over(Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout)
            return len(waits) == 8

    monkeypatch.setattr(output, "Event", Over)
    return waits


def test_elsewhere_a_line_says_now_and_then_what_is_done(
    waits: list[float | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Written()
    monkeypatch.setattr(output, "stderr", Console(file=file))
    with output.activity(lambda: f"doing the {len(waits)}th"):
        pass
    assert waits == [20, 40, 80, 160, 320, 600, 600, 600]
    assert file.pieces == [f"doing the {i}th\n" for i in range(1, 8)], "no other line comes between text and newline"


def test_a_closed_file_ends_nothing(waits: list[float | None], monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr(output, "stderr", Console(file=file))
    file.close()
    with output.activity(lambda: "doing this"):
        pass
    assert len(waits) == 8


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


WORDS = st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=11)
CELLS = st.lists(WORDS, max_size=8).map(" ".join)
LONG = "Qwen2.5-14B-Instruct-Q4_K_M.gguf"
NAMES = ("model", "tokens/s", "what it is for", "size of it", "remark")


def drawn(table: object, width: int) -> list[str]:
    file = io.StringIO()
    LiteralConsole(file=file, force_terminal=True, color_system=None, width=width).print(table, soft_wrap=False)
    return file.getvalue().splitlines()


@pytest.mark.slow
@given(st.lists(st.tuples(CELLS, WORDS, CELLS, WORDS, CELLS), min_size=1, max_size=5), st.integers(40, 130))
def test_no_word_is_broken_and_no_line_too_long(rows: list[tuple[str, ...]], width: int) -> None:
    table = FittingTable(*NAMES, right=NAMES[1:4:2], optional=NAMES[4:2:-1])
    for row in rows:
        table.add_heading("a heading above it")
        table.add_row(*row)
    lines = drawn(table, width)
    assert max(map(cell_len, lines)) <= width
    shown, _, left_out = " ".join(" ".join(lines).split()).partition("left out in this width: ")
    kept = [i for i, name in enumerate(NAMES) if name not in left_out.split(", ")]
    assert all(word in shown.split() for row in rows for i in kept for word in row[i].split())


def catalog() -> FittingTable:
    table = FittingTable("model", "tokens/s", "plan", "memory", right=("tokens/s", "memory"), optional=("memory",))
    table.add_heading("prose")
    table.add_row(LONG, "4.10", "adaptive tree of at most 16 nodes", "9.00 GB")
    return table


def test_with_room_every_cell_is_one_line() -> None:
    assert [line.split("  ")[0] for line in drawn(catalog(), 100)] == ["model", "", "prose", LONG]


def test_cells_wrap_at_words_before_a_column_is_left_out() -> None:
    lines = drawn(catalog(), 79)
    assert lines[3].split() == [LONG, "4.10", "adaptive", "tree", "of", "at", "most", "9.00", "GB"]
    assert lines[4].split() == ["16", "nodes"]


def test_what_is_left_out_is_named() -> None:
    lines = drawn(catalog(), 70)
    assert "9.00" not in " ".join(lines)
    assert lines[-1] == "left out in this width: memory"


def test_too_narrow_a_row_becomes_a_block() -> None:
    lines = [line.rstrip() for line in drawn(catalog(), 40)]
    assert lines[:3] == ["prose", LONG, "  tokens/s  4.10"]
    assert lines[-1] == "  memory    9.00 GB"


def test_facts_wrap_beside_their_names() -> None:
    lines = [line.rstrip() for line in drawn(facts([("model", "a b c"), ("tokenizer", "one two three four")]), 22)]
    assert lines == ["model      a b c", "tokenizer  one two", "           three four"]
