"""Pictures of static trees."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from specrun.speculation.papers.sequoia import best_shape
from specrun.speculation.shape import TreeShape
from specrun.views.tree_view import ShapeView, caption

SMALL = TreeShape((-1, 0, 1, 1, 3, 0, 5))
ACCEPTANCE = [0.6, 0.2, 0.1, 0.05]


def shown(shape: TreeShape, width: int = 120, encoding: str = "utf-8") -> list[str]:
    data = io.BytesIO()
    file = io.TextIOWrapper(data, encoding=encoding)
    Console(file=file, force_terminal=True, color_system=None, width=width, legacy_windows=False).print(
        ShapeView(shape, ACCEPTANCE)
    )
    file.flush()
    return data.getvalue().decode(encoding).splitlines()


def test_a_small_tree_is_drawn_with_its_chances() -> None:
    assert shown(SMALL) == [
        "o─┬─60─┬─36",
        "  │    └─12─── 7",
        "  └─20───12",
        "7 nodes, 3 deep, 3 leaves, 2.47 tokens a pass expected",
    ]


def test_without_other_characters_it_is_drawn_in_ascii() -> None:
    assert shown(SMALL, encoding="ascii")[:3] == ["o-+-60-+-36", "  |    `-12--- 7", "  `-20---12"]
    assert "##" in "".join(shown(TreeShape.branching((4,) * 4), encoding="ascii"))


def test_every_leaf_of_a_drawn_tree_has_a_line_and_every_level_of_a_larger_one() -> None:
    drawn = best_shape(ACCEPTANCE, 64, 12)
    assert len(shown(drawn)) == drawn.n_leaves + 1
    larger = best_shape(ACCEPTANCE, 65, 12)
    lines = shown(larger)
    assert [int(line.split()[1]) for line in lines[1:-1]] == list(larger.widths)
    assert [float(line.split()[2]) for line in lines[1:3]] == [1.0, 0.95]


@pytest.mark.parametrize("width", [40, 80, 300])
@pytest.mark.parametrize(
    "shape", [TreeShape.chain(0), TreeShape.chain(15), TreeShape.chain(63), TreeShape.branching((32, 8))]
)
def test_no_line_is_too_wide(shape: TreeShape, width: int) -> None:
    lines = shown(shape, width)
    assert max(map(len, lines)) <= min(width, 100)
    assert caption(shape, ACCEPTANCE) in " ".join(" ".join(lines).split())


def test_the_caption_knows_one_from_many() -> None:
    assert caption(TreeShape.chain(0), ACCEPTANCE) == "1 node, 0 deep, 1 leaf, 1.00 tokens a pass expected"
