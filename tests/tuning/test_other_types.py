"""Whether another type of weights would be faster: arithmetic on a profile, and miniatures that are really timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from specrun.catalog.gguf_file import GgufFile
from specrun.llama_settings import LlamaSettings
from specrun.long_run import Run
from specrun.profiles.profile import Profile
from specrun.profiles.tuning_rows import PredictionRow
from specrun.speculation.planning.costs import CostModel, CostTable, PassTime
from specrun.speculation.planning.pass_sizes import PassSizes
from specrun.tuning import other_types
from specrun.tuning.miniature import Layers
from tests.models import random_llama, wide_target
from tests.profiles.test_profile import made as made_profile

CHAIN = ("chain", 4, 120.0, 3.6)  # a pass over 4 tokens takes 20 ms and drafting 10 ms: 120 tokens/s against 100 plain


def profile(ms: dict[int, float], rows: Sequence[tuple[str, int, float, float]]) -> Profile:
    """A profile of a target with these pass times; rows: method, nodes, tokens per second and a pass."""
    off = PredictionRow("off", "off", 1, 0, 1e3 / ms[1], 1.0, [], 0.0)
    predictions = [off] + [PredictionRow(m, m, n, n - 1, rate, tokens, [], 0.0) for m, n, rate, tokens in rows]
    costs = CostModel(CostTable([PassTime(n, 64, t) for n, t in ms.items()]))
    return replace(made_profile(), regime="in RAM", costs=costs, predictions={0.0: predictions})


def test_without_a_plan_that_drafts_the_gain_is_that_of_plain_decoding() -> None:
    assert other_types.gain(profile({1: 10, 4: 20}, []), {1: 0.5, 4: 0.9}) == pytest.approx(2.0)


def test_a_plan_gains_only_in_the_targets_share_of_its_time() -> None:
    tuned = profile({1: 10, 4: 20}, [CHAIN])
    assert other_types.gain(tuned, {1: 1.0, 4: 0.5}) == pytest.approx(1.5)  # 3.6 tokens in 20 ms
    assert other_types.gain(tuned, {1: 0.5, 4: 1.0}) == pytest.approx(200 / 120)  # the other type decodes plainly


def test_the_smallest_gain_of_all_temperatures_counts() -> None:
    tuned = profile({1: 10, 4: 20}, [CHAIN])
    both = replace(tuned, predictions=tuned.predictions | {0.8: profile({1: 10}, []).predictions[0.0]})
    assert other_types.gain(both, {1: 1.0, 4: 0.5}) == pytest.approx(1.0)


def test_sizes_of_plans_that_are_far_behind_are_not_timed() -> None:
    assert other_types.sizes_of_plans(profile({1: 10, 4: 20}, [CHAIN, ("chain", 32, 20.0, 4.0)])) == [1, 4]
    assert other_types.sizes_of_plans(profile({1: 10}, [("specexec", 10, 130.0, 4.0)])) == [1, 8, 12]
    assert other_types.sizes_of_plans(profile({1: 10}, [("specexec", 200, 130.0, 4.0)])) == [1, 64]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return random_llama(tmp_path / "a.gguf", n_embd=256, n_ff=256)


def times(*ratios: float) -> list[dict[int, float]]:
    """The ratios of rounds; passes of all sizes have the same."""
    return [{1: one, 4: one} for one in ratios]


def test_a_type_is_named_only_where_it_is_faster_by_more_than_the_error(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned = profile({1: 10, 4: 20}, [])
    found = {"Q4_0": times(0.5, 0.5, 0.51, 0.5, 0.5), "IQ4_NL": times(0.9, 0.9, 0.9, 0.9, 0.9)}
    monkeypatch.setattr(other_types, "measured_ratios", lambda *_: found)
    told = other_types.compared(tuned, target, 10**9, Run())
    assert [one.name for one in told.other_types] == ["Q4_0", "IQ4_NL"]
    assert told.other_types[0].gain == pytest.approx(2.0)
    assert told.other_types[0].error < 0.02
    (notice,) = set(told.notices) - set(tuned.notices)
    assert notice.startswith("weights in Q4_0 would probably be 2.00 times as fast here as these in Q8_0")
    for unclear in (times(0.95, 0.95, 0.95, 0.95, 0.95), times(0.5, 1.0, 0.7, 1.2, 0.6)):
        found = {"Q4_0": unclear}
        assert other_types.compared(tuned, target, 10**9, Run()).notices == tuned.notices
        assert other_types.compared(tuned, target, 10**9, Run()).other_types


def test_where_nothing_can_be_said_the_profile_says_why(target: Path, tmp_path: Path) -> None:
    tuned = profile({1: 10, 4: 20}, [])
    narrow = random_llama(tmp_path / "b.gguf", n_embd=64)
    for case, path, why in (
        (replace(tuned, regime="streamed"), target, "not all in RAM"),
        (replace(tuned, exact_sizes=PassSizes(8), pads=True), target, "padded"),
        (tuned, narrow, "usual dense model"),
    ):
        left_out = other_types.compared(case, path, 10**9, Run())
        assert why in left_out.other_types_left_out
        assert not left_out.other_types


@pytest.mark.slow
def test_miniatures_are_really_timed(made: Path) -> None:
    layers = Layers(GgufFile.read(wide_target(made, "q4_k_m")))
    settings = LlamaSettings(threads=1)
    ratios = other_types.measured_ratios(layers, [1, 4], settings, 10**9, Run())
    assert set(ratios) == {"Q4_0", "Q4_K_M", "IQ4_NL", "IQ4_XS", "Q8_0"}
    assert all(len(rounds) == 15 and set(rounds[0]) == {1, 4} for rounds in ratios.values())
    assert all(ratio > 0 for rounds in ratios.values() for one in rounds for ratio in one.values())
    n_bytes = layers.file.n_bytes
    assert "Q8_0" not in other_types.measured_ratios(layers, [1], settings, int(1.2 * n_bytes), Run())
    assert other_types.measured_ratios(layers, [1], settings, 10**9, Run().stage(-1)) == {}
