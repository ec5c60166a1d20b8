"""Cost tables give the measured times where there are any, and interpolate between them elsewhere."""

from __future__ import annotations

import pytest

from specrun.speculation.planning.costs import CostTable, PassTime, most_waiting

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


def straight(fixed: float, each: float) -> CostTable:
    return CostTable([PassTime(n, 64, fixed + each * n) for n in (1, 2, 4, 8, 16, 32)])


def waiting_ms(n_rounds: int, fixed: float, each: float, accepted: float) -> float:
    """Milliseconds a pass of so many passes and one over what then waits, beyond those of the passes themselves."""
    waiting = sum(each * accepted * i for i in range(n_rounds))
    return (waiting + fixed + each * accepted * n_rounds) / n_rounds


@pytest.mark.parametrize(("fixed", "each"), [(100.0, 1.0), (100.0, 5.0), (70.0, 30.0)])
def test_tokens_wait_for_the_cheapest_number_of_passes(fixed: float, each: float) -> None:
    best = min(range(1, 100), key=lambda n_rounds: waiting_ms(n_rounds, fixed, each, 2.0))
    assert most_waiting(straight(fixed, each)) == pytest.approx(2.0 * best, abs=1.5)


def test_the_number_that_waits_has_bounds() -> None:
    assert most_waiting(straight(100.0, 0.0)) == 48
    assert most_waiting(straight(0.0, 10.0)) == 2
    assert most_waiting(CostTable([PassTime(1, 64, 5.0)])) == 48
