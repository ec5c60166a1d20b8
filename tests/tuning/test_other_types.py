"""Whether another type of weights would be faster: the made-up models, and the arithmetic on a profile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import pytest

from specrun.llama_settings import LlamaSettings
from specrun.profiles.profile import Profile
from specrun.profiles.tuning_rows import PredictionRow
from specrun.speculation.planning.costs import CostModel, CostTable, PassTime
from specrun.tuning import other_types
from tests.models import random_llama
from tests.profiles.test_profile import made

Type = gguf.GGMLQuantizationType


def profile(ms: dict[int, float], rows: list[tuple[str, int, float, float]]) -> Profile:
    """A profile of a target with these pass times; rows: method, nodes, tokens per second and a pass."""
    predictions = [PredictionRow(name, name, n, n - 1, rate, tokens, [], 0.0) for name, n, rate, tokens in rows]
    costs = CostModel(CostTable([PassTime(n, 64, t) for n, t in ms.items()]))
    return replace(made(), regime="in RAM", costs=costs, predictions={0.0: predictions})


def test_without_a_plan_that_drafts_the_gain_is_that_of_plain_decoding() -> None:
    assert other_types.gain(profile({1: 10, 4: 20}, []), {1: 0.5, 4: 0.9}) == pytest.approx(2.0)


def test_a_plan_gains_only_in_the_targets_share_of_its_time() -> None:
    # A pass over 4 tokens takes 20 ms, drafting 10 ms more, and commits 3.6 tokens: 120 tokens/s against 100 plain.
    tuned = profile({1: 10, 4: 20}, [("chain", 4, 120.0, 3.6)])
    assert other_types.gain(tuned, {1: 1.0, 4: 0.5}) == pytest.approx(1.5)  # 3.6 tokens in 20 ms
    assert other_types.gain(tuned, {1: 0.5, 4: 1.0}) == pytest.approx(200 / 120)  # the other type decodes plainly


def test_the_smallest_gain_of_all_temperatures_counts() -> None:
    tuned = profile({1: 10, 4: 20}, [("chain", 4, 120.0, 3.6)])
    both = replace(tuned, predictions=tuned.predictions | {0.8: []})
    assert other_types.gain(both, {1: 1.0, 4: 0.5}) == pytest.approx(1.0)


def test_the_made_up_models_are_of_the_types_they_stand_for_and_run(tmp_path: Path) -> None:
    ratios = other_types.measured_ratios("Q4_0", LlamaSettings(threads=1))
    assert set(ratios) == {"IQ4_NL"}  # the only one that is no larger
    assert all(ratio > 0 for ratio in ratios["IQ4_NL"].values())
    path = other_types._write(tmp_path / "a.gguf", "Q4_K", "Q6_K", "Q8_0")
    types = {tensor.name: tensor.tensor_type for tensor in gguf.GGUFReader(path).tensors}
    assert types["blk.0.ffn_down.weight"] == types["blk.1.attn_q.weight"] == Type.Q4_K
    assert types["blk.1.ffn_down.weight"] == types["blk.1.attn_v.weight"] == Type.Q6_K
    assert types["output.weight"] == Type.Q8_0


def test_a_type_is_named_only_where_it_is_clearly_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = random_llama(tmp_path / "a.gguf")
    tuned = profile({1: 10, 4: 20}, [("chain", 4, 120.0, 3.6)])
    found = {"Q4_K_M": {1: 0.5, 4: 0.6}, "Q6_K": {1: 0.9, 4: 0.9}}
    monkeypatch.setattr(other_types, "measured_ratios", lambda *_: found)
    sentence = other_types.faster_type(tuned, target)
    assert sentence is not None
    assert sentence.startswith("weights in Q4_K_M would probably be 1.7 times as fast on this machine as these in Q8_0")
    monkeypatch.setattr(other_types, "measured_ratios", lambda *_: {"Q6_K": found["Q6_K"]})
    assert other_types.faster_type(tuned, target) is None
    monkeypatch.setattr(other_types, "measured_ratios", lambda *_: pytest.fail("nothing has to be timed"))
    assert other_types.faster_type(replace(tuned, regime="streamed"), target) is None
    unknown = random_llama(tmp_path / "b.gguf", weight_type=Type.F32)
    assert other_types.faster_type(tuned, unknown) is None
