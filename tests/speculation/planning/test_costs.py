"""Cost tables give the measured times where there are any, and interpolate between them elsewhere."""

from __future__ import annotations

import pytest

from specrun.speculation.planning.costs import CostTable, PassTime

JAGGED = [(1, 30.0), (2, 80.0), (4, 130.0), (7, 210.0), (8, 125.0), (16, 200.0)]


def table(contexts: tuple[int, ...] = (64,), growth: float = 0.0) -> CostTable:
    return CostTable(PassTime(n, ctx, ms + growth * n * (ctx - 64)) for ctx in contexts for n, ms in JAGGED)


@pytest.mark.parametrize(("n", "ms"), JAGGED)
def test_measured_sizes_keep_their_times(n: int, ms: float) -> None:
    assert table().ms(n, 64) == pytest.approx(ms)


def test_between_sizes_and_contexts_lines_are_straight() -> None:
    found = table((64, 1088), growth=0.01)
    assert found.ms(3, 64) == pytest.approx(105.0)
    assert found.ms(8, 576) == pytest.approx(125 + 0.01 * 8 * 512)
    assert found.ms(8, 2112) == pytest.approx(125 + 0.01 * 8 * 2048)
    assert found.ms(32, 64) == pytest.approx(400.0), "in proportion beyond the largest size"


def test_a_longer_context_never_makes_a_pass_cheaper_by_extrapolation() -> None:
    noisy = CostTable([PassTime(1, 64, 10.0), PassTime(1, 128, 9.0)])
    assert noisy.ms(1, 4096) == pytest.approx(9.0)


def test_few_sizes_at_another_context_shift_the_sizes_between_them() -> None:
    found = CostTable([*(PassTime(n, 64, ms) for n, ms in JAGGED), PassTime(1, 1088, 40.0), PassTime(16, 1088, 360.0)])
    assert found.sizes == (1, 2, 4, 7, 8, 16)
    assert found.ms(1, 1088) == pytest.approx(40.0)
    assert found.ms(8, 1088) == pytest.approx(125 + 10 + 150 * 7 / 15)


def test_beyond_the_sizes_of_a_longer_context_what_it_adds_grows_with_the_tokens() -> None:
    base = [PassTime(n, 64, 100.0) for n in (1, 16, 64)]
    found = CostTable([*base, PassTime(1, 768, 100.0), PassTime(16, 768, 130.0)])
    assert found.ms(16, 768) == pytest.approx(130.0)
    assert found.ms(64, 768) == pytest.approx(220.0)
    assert found.ms(64, 64) == pytest.approx(100.0)


def test_an_empty_table_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        CostTable([])
