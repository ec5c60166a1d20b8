"""Pictures of static trees."""

from __future__ import annotations

import io

import pytest

from specrun.speculation.sequoia import best_shape
from specrun.speculation.shape import TreeShape
from specrun.views.output import LiteralConsole
from specrun.views.tree_view import caption, static_tree

SMALL = TreeShape((-1, 0, 1, 1, 3, 0, 5))
ACCEPTANCE = [0.6, 0.2, 0.1, 0.05]


def shown(shape: TreeShape, encoding: str = "utf-8") -> list[str]:
    data = io.BytesIO()
    file = io.TextIOWrapper(data, encoding=encoding)
    console = LiteralConsole(file=file, force_terminal=True, color_system=None, width=80, legacy_windows=False)
    console.print(static_tree(shape, ACCEPTANCE))
    file.flush()
    return [line.rstrip() for line in data.getvalue().decode(encoding).splitlines()]


def test_a_small_tree_is_drawn_with_its_chances() -> None:
    assert shown(SMALL) == [
        "o",
        "├── 60 %",
        "│   ├── 36 %",
        "│   └── 12 %",
        "│       └── 7 %",
        "└── 20 %",
        "    └── 12 %",
        "7 nodes, 3 deep, 3 leaves, 2.47 tokens a pass expected",
    ]
    assert shown(SMALL, encoding="ascii")[1] == "+-- 60 %"


def test_every_node_of_a_drawn_tree_has_a_line_and_every_level_of_a_larger_one() -> None:
    assert len(shown(best_shape(ACCEPTANCE, 64, 12))) == 64 + 1
    larger = best_shape(ACCEPTANCE, 65, 12)
    lines = shown(larger)
    assert [int(line.split()[1]) for line in lines[1:-1]] == list(larger.widths)
    assert [float(line.split()[2]) for line in lines[1:3]] == [1.0, 0.95]


@pytest.mark.parametrize("shape", [TreeShape.chain(0), TreeShape.chain(63), TreeShape.branching((32, 8))])
def test_the_size_stands_below(shape: TreeShape) -> None:
    assert shown(shape)[-1] == caption(shape, ACCEPTANCE)


def test_the_caption_knows_one_from_many() -> None:
    assert caption(TreeShape.chain(0), ACCEPTANCE) == "1 node, 0 deep, 1 leaf, 1.00 tokens a pass expected"
