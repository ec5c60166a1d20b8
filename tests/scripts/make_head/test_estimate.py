"""What a head is expected to bring, by a cost table."""

from __future__ import annotations

import pytest

from scripts.make_head.estimate import Agreement, gain
from specrun.speculation.planning.costs import CostTable, PassTime

CHANCES = [0.6, 0.15, 0.05]


def table(*times: tuple[int, float]) -> CostTable:
    return CostTable([PassTime(n, 64, ms) for n, ms in times])


def test_where_large_passes_are_cheap_a_tree_pays() -> None:
    found = gain(CHANCES, table((1, 100.0), (16, 105.0), (64, 120.0)), head_share=0.01)
    assert found.tokens_per_pass > 2
    assert found.speedup > 1.5
    assert str(found).endswith(f"{found.speedup:.2f} times plain decoding")


def test_where_each_token_costs_as_much_as_a_pass_nothing_pays() -> None:
    found = gain(CHANCES, table((1, 1.0), (4, 4.0), (16, 16.0)), head_share=0.3)
    assert found.speedup < 1
    assert str(found).endswith("slower than plain decoding")


def test_agreement_in_words() -> None:
    assert Agreement([0.614, 0.5, 0.402], [0.6] * 3, CHANCES).text == "61% agree at level 1, 40% at level 3"
    assert gain([0.9], table((1, 10.0), (4, 11.0)), 0.1).tokens_per_pass == pytest.approx(1 + 0.9 + 0.81 + 0.729)
