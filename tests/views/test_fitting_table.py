"""Tables at any width: no line is too long, no word is broken, and nothing is lost but what is named as left out."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from specrun.views import output
from specrun.views.fitting_table import FittingTable, facts
from specrun.views.output import LiteralConsole

WORDS = st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=11)
CELLS = st.lists(WORDS, max_size=8).map(" ".join)
LONG = "Qwen2.5-14B-Instruct-Q4_K_M.gguf"
NAMES = ("model", "tokens/s", "what it is for", "size of it", "remark")


def drawn(table: object, width: int) -> list[str]:
    file = io.StringIO()
    LiteralConsole(file=file, force_terminal=True, color_system=None, width=width).print(table, soft_wrap=False)
    return file.getvalue().splitlines()


@given(st.lists(st.tuples(CELLS, WORDS, CELLS, WORDS, CELLS), min_size=1, max_size=5), st.integers(40, 130))
def test_no_word_is_broken_and_no_line_too_long(rows: list[tuple[str, ...]], width: int) -> None:
    table = output.table(*NAMES, right=NAMES[1:4:2], optional=NAMES[4:2:-1])
    for row in rows:
        table.add_heading("a heading above it")
        table.add_row(*row)
    lines = drawn(table, width)
    assert max(map(cell_len, lines)) <= width
    shown, _, left_out = " ".join(" ".join(lines).split()).partition("left out in this width: ")
    kept = [i for i, name in enumerate(NAMES) if name not in left_out.split(", ")]
    assert all(word in shown.split() for row in rows for i in kept for word in row[i].split())


def catalog() -> FittingTable:
    table = output.table("model", "tokens/s", "plan", "memory", right=("tokens/s", "memory"), optional=("memory",))
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
