"""Pass times follow the machine, size by size, and no single pass changes much."""

from __future__ import annotations

import numpy as np
import pytest

from specrun.speculation.planning.costs import CostTable, PassTime
from specrun.speculation.planning.pass_sizes import PassSizes
from specrun.speculation.planning.pass_times import ExpertGrowth, PassTimes

TABLE = CostTable([PassTime(1, 64, 100.0), PassTime(4, 64, 130.0), PassTime(8, 64, 200.0)])


def after(passes: list[tuple[int, float]]) -> PassTimes:
    """What is known after these passes of (size, milliseconds)."""
    times = PassTimes(TABLE.times)
    for n, ms in passes:
        times.record(n, 64, ms)
    return times


def test_without_a_pass_the_table_holds() -> None:
    assert list(PassTimes(TABLE.times).row(64)[:9]) == pytest.approx(list(TABLE.row(64)))


def test_a_machine_that_grows_slower_is_slower_at_every_size() -> None:
    times = after([(4, 195.0), (8, 300.0)] * 20)
    assert times.ms(1, 64) == pytest.approx(150.0, rel=0.06)
    assert times.row(64)[8] == pytest.approx(300.0, rel=0.03)


def test_a_size_whose_entry_is_wrong_is_put_right_beside_the_others() -> None:
    times = after([(4, 130.0), (1, 60.0), (8, 200.0), (4, 130.0)] * 15)
    assert times.ms(1, 64) == pytest.approx(60.0, rel=0.2)
    assert times.row(64)[8] == pytest.approx(200.0, rel=0.1)


def test_a_size_follows_the_machine_while_it_is_not_run() -> None:
    passes = [(1, 60.0), (4, 130.0), (8, 200.0)] * 15
    slower = [(4, 260.0), (8, 400.0)] * 20
    assert after(passes + slower).ms(1, 64) == pytest.approx(120.0, rel=0.2)


def test_a_single_slow_pass_changes_little_and_is_forgotten() -> None:
    assert after([(1, 5000.0)]).ms(1, 64) < 200.0
    assert after([(1, 5000.0), *[(4, 130.0)] * 20]).ms(4, 64) == pytest.approx(130.0, rel=0.02)
    assert after([(1, 5000.0), *[(1, 100.0)] * 20]).ms(1, 64) == pytest.approx(100.0, rel=0.05)


def learned(passes: list[tuple[int, float]]) -> PassTimes:
    """What a run without a table has learned from these passes of (size, milliseconds)."""
    times = PassTimes()
    for n, ms in passes:
        times.record(n, 64, ms)
    return times


def test_without_a_table_sizes_between_known_ones_are_interpolated() -> None:
    times = learned([(1, 100.0), (1, 100.0), (5, 140.0)])
    assert times.ms(1, 0) == pytest.approx(100.0)
    assert times.ms(3, 0) == pytest.approx(120.0)
    assert 140.0 < times.ms(9, 0) < 180.0, "beyond the largest size the times rise more slowly"


def test_a_prompt_tells_the_time_of_a_large_pass() -> None:
    streamed, in_ram = learned([(1, 580.0)]), learned([(1, 22.0), (1, 22.0)])
    streamed.read_prompt(100, 700.0)
    in_ram.read_prompt(100, 500.0)
    assert streamed.ms(64, 0) < 1.2 * 580.0
    assert in_ram.ms(64, 0) > 10 * 22.0


def copying(*passes: tuple[int, float], experts: ExpertGrowth | None = None) -> PassTimes:
    """Times of a target with weights in RAM that passes of 32 tokens and more copy to a GPU."""
    times = PassTimes(experts=experts, copies_from=32)
    for n, ms in passes:
        times.record(n, 64, ms)
    return times


def test_passes_that_copy_weights_to_a_gpu_tell_nothing_of_smaller_ones_nor_these_of_them() -> None:
    # As measured on an H200, with half of the layers of 3.2 billion parameters in VRAM.
    times = copying((1, 19.0), (1, 19.0))
    times.read_prompt(51, 37.0)
    assert times.ms(32, 0) == times.ms(64, 0) == times.ms(128, 0) == pytest.approx(37.0)
    assert times.ms(24, 0) > 100.0, "it was 94; that of a prompt is no hint"
    for size, ms in ((8, 61.0), (8, 61.0), (64, 40.0), (64, 40.0)):
        times.record(size, 0, ms)
    assert times.ms(4, 0) == pytest.approx(37.0)
    assert 61.0 < times.ms(31, 0) < 140.0
    assert times.ms(32, 0) == times.ms(51, 0) == times.ms(64, 0) == pytest.approx(40.0)


def test_a_pass_is_filled_up_to_a_larger_one_that_takes_less() -> None:
    times = copying((1, 19.0), (1, 19.0), (8, 61.0), (8, 61.0), (64, 40.0), (64, 40.0))
    assert [times.size(n) for n in (1, 2, 3, 8, 31, 32, 63, 600)] == [1, 2, 3, 32, 32, 32, 63, 600]
    assert times.row(0)[20] == times.ms(32, 0) < times.ms(20, 0)
    assert PassTimes(TABLE.times, PassSizes(4, 4)).size(5) == 8
    assert [after([]).size(n) for n in (1, 3, 6)] == [1, 3, 6]


def test_where_passes_had_tokens_of_several_texts_only_smaller_ones_are_expected_to_be_computed() -> None:
    times = copying((200, 900.0))
    assert 0 < times.ms(1, 0) < 0.5 * 900.0
    assert times.size(20) == 32
    assert times.ms(260, 0) == pytest.approx(900.0), "copying takes the time, whatever the tokens"
    assert PassTimes(known=[PassTime(200, 0, 900.0)]).ms(260, 0) <= 260 / 200 * 900.0


def test_below_the_smallest_known_size_no_token_is_free_until_a_smaller_pass_tells() -> None:
    times = PassTimes()
    times.record(112, 0, 1300.0)  # a prompt, and the next tokens of two texts
    assert np.diff(times.row(0)[2:113]) == pytest.approx(1300.0 / 112)
    times.record(2, 0, 50.0)
    assert times.ms(2, 0) == 50.0
    assert times.ms(57, 0) == pytest.approx((50.0 + 1300.0) / 2)


def test_a_threshold_beyond_all_trees_changes_nothing() -> None:
    far, none = PassTimes(copies_from=1024), PassTimes()
    for times in (far, none):
        times.record(1, 0, 19.0)
        times.read_prompt(300, 60.0)
    assert list(far.row(0)) == list(none.row(0))


def test_before_any_pass_copied_weights_its_time_is_guessed_so_that_one_is_tried() -> None:
    times = copying()
    assert times.reach >= 32
    for _ in range(2):
        times.record(1, 64, 19.0)
    times.read_prompt(12, 70.0)  # too short to have copied them
    assert times.ms(24, 0) > times.ms(16, 0) > 70.0
    assert times.ms(32, 0) == times.ms(512, 0) == pytest.approx(19.0 / 0.6)
    assert [times.size(n) for n in (1, 2, 16)] == [1, 2, 32]
    times.record(32, 64, 120.0)
    assert times.ms(32, 0) == times.ms(40, 0) == 120.0


def test_a_mixture_copies_the_experts_that_a_pass_uses() -> None:
    experts = ExpertGrowth(128, 8, 0.9)
    times = copying((1, 10.0), (1, 10.0), experts=experts)
    times.read_prompt(512, 40.0)
    assert times.ms(8, 0) == pytest.approx(of_mixture((1, 10.0), (1, 10.0)).ms(8, 0))
    growth = experts.row(512)
    assert times.ms(32, 0) == pytest.approx(40.0 * growth[32] / growth[512])
    assert times.ms(31, 0) > 2 * times.ms(32, 0)


def test_the_first_pass_of_a_size_may_be_cold() -> None:
    assert not learned([(1, 50.0)]).knows_plain
    times = learned([(1, 50.0), (1, 22.0), (1, 23.0), (1, 22.0)])
    assert times.knows_plain
    assert times.ms(1, 0) == pytest.approx(22.0, rel=0.05)


def test_where_passes_are_padded_the_smallest_one_is_plain() -> None:
    times = PassTimes(padding=PassSizes(8, 8))
    for n, ms in ((8, 30.0), (8, 30.0), (16, 50.0)):
        times.record(n, 64, ms)
    assert times.knows_plain
    assert times.sizes[:3] == (8, 16, 24)
    assert times.ms(1, 0) == times.ms(8, 0) == pytest.approx(30.0)
    assert times.row(0)[9] == times.row(0)[16] == pytest.approx(50.0)


def test_learned_times_follow_a_machine_that_grows_slower() -> None:
    times = learned([(1, 100.0), (4, 130.0)] * 6 + [(4, 260.0)] * 30)
    assert times.ms(1, 0) == pytest.approx(200.0, rel=0.25)


def test_what_was_learned_begins_the_next_run() -> None:
    first = learned([(1, 100.0), (1, 100.0), (16, 150.0)])
    second = PassTimes(first.times)
    assert second.knows_plain
    assert list(second.row(0)) == pytest.approx(list(first.row(0)))


def of_mixture(*passes: tuple[int, float]) -> PassTimes:
    times = PassTimes(experts=ExpertGrowth(128, 8, 0.9))
    for n, ms in passes:
        times.record(n, 64, ms)
    return times


def test_a_mixture_is_expected_to_read_further_experts() -> None:
    times = of_mixture((1, 10.0), (1, 10.0))
    assert times.knows_plain
    assert times.ms(1, 0) == pytest.approx(10.0)
    assert times.ms(2, 0) == pytest.approx(10 * (0.1 + 0.9 * 1.94), rel=0.01)
    assert times.ms(8, 0) == pytest.approx(10 * (0.1 + 0.9 * 6.45), rel=0.01)
    assert learned([(1, 10.0), (1, 10.0)]).ms(8, 0) < 0.3 * times.ms(8, 0)


def test_passes_of_a_mixture_correct_what_was_expected() -> None:
    times = of_mixture((1, 10.0), (1, 10.0), (8, 30.0), (8, 30.0))
    assert times.ms(8, 0) == pytest.approx(30.0)
    before = of_mixture((1, 10.0), (1, 10.0))
    assert 10.0 < times.ms(4, 0) < 30.0 < times.ms(16, 0) < before.ms(16, 0)
    again = PassTimes(times.times, experts=ExpertGrowth(128, 8, 0.9))
    assert list(again.row(0)) == pytest.approx(list(times.row(0)))


def test_a_prompt_tells_how_large_passes_of_a_mixture_grow_beyond_its_experts() -> None:
    times, computed = of_mixture((1, 10.0), (1, 10.0)), of_mixture((1, 10.0), (1, 10.0))
    times.read_prompt(512, 10 * (0.1 + 0.9 * 16))
    computed.read_prompt(512, 1500.0)
    assert times.ms(64, 0) == pytest.approx(of_mixture((1, 10.0), (1, 10.0)).ms(64, 0), rel=0.01)
    assert computed.ms(64, 0) > 1.5 * times.ms(64, 0)
    assert computed.ms(2, 0) == pytest.approx(times.ms(2, 0), rel=0.05)


def test_one_token_of_a_mixture_reads_its_experts_and_many_read_all() -> None:
    growth = ExpertGrowth(128, 8, 1.0).row(10_000)
    assert growth[0] == 0
    assert 8 * growth[1] == pytest.approx(8)
    assert 8 * growth[10_000] == pytest.approx(128)
    assert list(growth[[2, 4, 8, 64]]) == pytest.approx([1.94, 3.64, 6.45, 15.74], abs=0.01)


@pytest.mark.slow
def test_what_is_read_is_the_mean_of_independent_choices() -> None:
    rng = np.random.default_rng(0)
    growth = ExpertGrowth(16, 3, 1.0)
    drawn = [len({e for _ in range(5) for e in rng.choice(16, 3, replace=False)}) for _ in range(4000)]
    assert 3 * growth.row(5)[5] == pytest.approx(np.mean(drawn), rel=0.02)


def test_what_every_token_uses_is_read_once() -> None:
    shared = ExpertGrowth(128, 8, 0.25).row(16)
    alone = ExpertGrowth(128, 8, 1.0).row(16)
    assert shared[1] == alone[1] == pytest.approx(1.0)
    assert shared[16] - 1 == pytest.approx(0.25 * (alone[16] - 1))
    assert np.all(np.diff(shared) > 0)
    assert np.all(np.diff(shared, 2) < 0), "each further token adds less"
