"""Classes of sizes: what a pass is padded to, and what that costs."""

from __future__ import annotations

import pytest

from specrun.speculation.planning.costs import PassTime
from specrun.speculation.planning.pass_sizes import ANY_SIZE, PLAIN_ONLY, PassSizes, best_rate
from specrun.speculation.planning.pass_times import PassTimes

MULTIPLES_OF_4 = PassSizes(8, 4)


@pytest.mark.parametrize("sizes", [ANY_SIZE, PLAIN_ONLY, MULTIPLES_OF_4, PassSizes(2), PassSizes(1, 1, 7)], ids=str)
def test_padding_reaches_the_next_size_and_a_limit_the_last_one(sizes: PassSizes) -> None:
    members = [n for n in range(1, 100) if n in sizes]
    for n in range(1, 80):
        larger = [size for size in members if size >= n]
        if larger:
            assert sizes.padded(n) == larger[0]
        assert sizes.largest(n) == max((size for size in members if size <= n), default=0)


def test_a_class_has_room_for_what_it_holds_with_padding() -> None:
    sizes = PassSizes(8, 4, 16)
    assert [n for n in range(1, 40) if sizes.has_room_for(n)] == list(range(1, 17))
    assert PassSizes(8).has_room_for(1000)


def test_numbers_that_are_no_class_are_refused() -> None:
    for numbers in [(0, 1, None), (8, 3, None), (8, 4, 4), (8, 4, 9), (4, 8, None), (8, 0, None)]:
        with pytest.raises(ValueError, match="no class"):
            PassSizes(*numbers)


def test_of_two_classes_the_one_with_the_fastest_pass_is_better() -> None:
    streamed = {1: 100.0, 8: 101.0, 64: 110.0}
    in_ram = {1: 25.0, 4: 68.0, 8: 124.0, 64: 500.0}
    assert best_rate(MULTIPLES_OF_4, streamed) > best_rate(PassSizes(1, 1, 7), streamed)
    assert best_rate(MULTIPLES_OF_4, in_ram) < best_rate(PassSizes(1, 1, 7), in_ram)


def test_times_are_those_of_padded_passes() -> None:
    times = [PassTime(n, 64, ms) for n, ms in ((1, 10.0), (4, 20.0), (8, 30.0), (12, 34.0), (16, 50.0), (17, 90.0))]
    padded = PassTimes(times, MULTIPLES_OF_4)
    assert padded.row(64)[:17].tolist() == [30.0] * 9 + [34.0] * 4 + [50.0] * 4
    assert all(n % 4 == 0 for n in padded.sizes)
    assert PassTimes(times).row(64)[1] == 10.0


def test_a_padded_pass_corrects_the_times_of_all_that_are_padded_alike() -> None:
    times = PassTimes([PassTime(8, 64, 30.0), PassTime(16, 64, 50.0)], MULTIPLES_OF_4)
    for _ in range(30):
        times.record(8, 64, 60.0)
        times.record(16, 64, 50.0)
    assert times.ms(1, 64) == times.ms(5, 64) == times.ms(8, 64) == pytest.approx(60.0, rel=0.1)
