"""Whether a model fits, by placement, and what is read for a token; and which layers stay in RAM: as many as fit,
spread evenly, and never more than the memory holds.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from specrun.hardware.fit import Rates, Residency, _seconds, fit, plan_residency, relieved, room_for_weights
from specrun.hardware.model_shape import ModelShape, PlacementRequest
from specrun.hardware.placement import place
from specrun.llama_settings import LlamaSettings
from tests.hardware.test_placement import DENSE, DRAFT, GB, MB, MOE, gpu, random_requests

RATES = Rates(vram=100 * GB, ram=10 * GB, disk=1 * GB)


def test_with_more_memory_it_fits_better_and_is_faster() -> None:
    machines = [(0, 2), (0, 8), (0, 64), (8, 64), (24, 64)]
    found = [fit(DENSE, DRAFT, [gpu(v * GB)] if v else [], r * GB, RATES) for v, r in machines]
    assert [one.fits for one in found] == ["no", "streamed", "ram", "partly", "vram"]
    rates = [one.tokens_per_second for one in found]
    assert rates == sorted(rates)
    assert rates[0] == 0


def test_a_token_reads_every_weight_once_from_where_it_lies() -> None:
    weights = sum(DENSE.layers) + DENSE.output
    assert fit(DENSE, None, [gpu(24 * GB)], 64 * GB, RATES).tokens_per_second == pytest.approx(RATES.vram / weights)
    assert fit(DENSE, None, [], 64 * GB, RATES).tokens_per_second == pytest.approx(RATES.ram / weights)
    partly = fit(DENSE, None, [gpu(8 * GB)], 64 * GB, RATES)
    in_vram = partly.placement.gpus[0].parts["target"]
    seconds = in_vram / RATES.vram + (weights - in_vram) / RATES.ram
    assert partly.tokens_per_second == pytest.approx(1 / seconds)


def test_a_tied_embedding_in_ram_is_read_as_the_output() -> None:
    tied = replace(DENSE, is_tied=True, output=DENSE.embedding)
    rate = fit(tied, None, [], 64 * GB, RATES).tokens_per_second
    assert rate == pytest.approx(RATES.ram / (sum(tied.layers) + tied.embedding))


def test_a_token_of_a_mixture_reads_some_experts() -> None:
    dense, experts = sum(MOE.layers) + MOE.output, sum(MOE.experts)
    rate = fit(MOE, None, [], 64 * GB, RATES, used_share=0.1).tokens_per_second
    assert rate == pytest.approx(RATES.ram / (dense + 0.1 * experts))


def test_what_does_not_fit_into_ram_comes_from_disk() -> None:
    """Of a dense model what is not resident, with a GPU or without."""
    alone = fit(DENSE, None, [], 8 * GB, RATES)
    assert alone.fits == "streamed"
    missing = sum(DENSE.layers) + DENSE.output + DENSE.embedding - 8 * GB
    assert missing / RATES.disk < 1 / alone.tokens_per_second < 2 * missing / RATES.disk
    beside = fit(DENSE, None, [gpu(4 * GB)], 8 * GB, RATES)
    assert beside.fits == "streamed"
    parts = beside.placement.gpus[0].parts
    assert parts["target"] > 2 * GB
    saved = parts["target"] * (1 / RATES.disk - 1 / RATES.vram)
    seconds = 1 / alone.tokens_per_second - 1 / beside.tokens_per_second
    assert saved < seconds < saved + parts["KV cache"] / RATES.disk


@pytest.mark.slow
def test_layers_in_vram_never_make_the_ring_slower() -> None:
    n = 0
    for wanted in random_requests(300):
        placement = place(wanted)
        if placement.regime == "streamed" and placement.n_gpu_layers:
            alone = place(replace(wanted, settings=LlamaSettings(gpu_layers=0)))
            room, other_room = room_for_weights(placement), room_for_weights(alone)
            ring = _seconds(placement, room, RATES, 0.1)
            assert ring <= _seconds(alone, other_room, RATES, 0.1) + 1e-9
            n += 1
    assert n > 15


def test_a_mixture_needs_ram_for_what_every_token_uses() -> None:
    small = ModelShape(**{**vars(MOE), "experts": (200 * MB,) * 32})
    assert fit(small, None, [], 6 * GB, RATES, 0.1).fits == "streamed"
    assert fit(small, None, [], 2 * GB, RATES, 0.1).fits == "no"


# --- resident layers -----------------------------------------------------------------------------------------------


def test_a_report_says_what_is_held_and_whether_swap_may_take_it() -> None:
    held = Residency("ring", 249 * MB, 418 * MB, 2, 28 * MB, locked=True)
    assert str(held) == "249 MB locked in RAM, 418 MB streamed through 2 slots of 28 MB"
    assert "swap may take them: `ulimit -l`" in str(replace(held, locked=False))
    assert str(Residency()) == "held as llama.cpp holds them"
    assert held.notice is None
    shorter = replace(held, given_back_bytes=56 * MB)
    assert str(shorter).endswith("28 MB; 56 MB given back to the system")
    assert shorter.notice
    assert "56 MB of weights were given back" in shorter.notice
    assert "reads 418 MB" in shorter.notice


def test_with_room_for_everything_nothing_is_streamed() -> None:
    plan = plan_residency([10] * 8, 20, 100)
    assert plan
    assert (plan.streamed, plan.resident_bytes, plan.streamed_bytes) == ((), 100, 0)


def test_without_room_for_the_slots_there_is_no_plan() -> None:
    assert plan_residency([10] * 8, 20, 39) is None
    plan = plan_residency([10] * 8, 20, 40)
    assert plan
    assert plan.streamed == tuple(range(8))


@pytest.mark.parametrize("n_slots", [2, 3])
@pytest.mark.parametrize("seed", range(20))
def test_resident_layers_and_slots_fit_into_the_room(seed: int, n_slots: int) -> None:
    rng = np.random.default_rng(seed)
    layers = rng.integers(90, 110, int(rng.integers(4, 40))).tolist()
    room = int(rng.integers(100 + n_slots * 110, 100 + sum(layers)))
    plan = plan_residency(layers, 100, room, n_slots)
    assert plan
    assert plan.resident_bytes + plan.streamed_bytes == 100 + sum(layers)
    assert plan.resident_bytes + n_slots * plan.slot_bytes <= room
    assert plan.slot_bytes == max(layers[layer] for layer in plan.streamed)
    assert len(plan.streamed) > n_slots


def test_as_many_layers_stay_as_fit() -> None:
    # 20 of others and 2 slots of 10 leave 45 of 85 for layers.
    plan = plan_residency([10] * 8, 20, 85)
    assert plan
    assert len(plan.streamed) == 4


@pytest.mark.parametrize(("n_layers", "n_resident"), [(22, 8), (80, 13), (32, 16), (33, 25), (5, 1)])
def test_resident_layers_are_spread_evenly(n_layers: int, n_resident: int) -> None:
    plan = plan_residency([10] * n_layers, 0, 10 * (n_resident + 2))
    assert plan
    stay = sorted(set(range(n_layers)) - set(plan.streamed))
    assert len(stay) == n_resident
    # Around the end of a pass too, because the next one begins with the first layer.
    gaps = [b - a for a, b in pairwise([*stay, stay[0] + n_layers])]
    assert max(gaps) - min(gaps) <= 1


@pytest.mark.parametrize("seed", range(20))
def test_as_few_layers_are_given_back_as_make_room_and_none_is_read_anew(seed: int) -> None:
    rng = np.random.default_rng(seed)
    layers = rng.integers(90, 110, int(rng.integers(4, 40))).tolist()
    plan = plan_residency(layers, 100, int(rng.integers(100 + 2 * 110, 100 + sum(layers))))
    assert plan
    n_bytes = int(rng.integers(1, sum(layers)))
    smaller = relieved(plan, layers, n_bytes)
    assert set(smaller.streamed) >= set(plan.streamed)
    assert smaller.resident_bytes + smaller.streamed_bytes == 100 + sum(layers)
    assert smaller.slot_bytes == max(layers[layer] for layer in smaller.streamed)
    assert list(smaller.streamed) == sorted(smaller.streamed)
    if smaller.streamed != tuple(range(len(layers))):
        assert smaller.held_bytes <= plan.held_bytes - n_bytes
        assert smaller.held_bytes > plan.held_bytes - n_bytes - 2 * 110, "more was given back than was needed"


def test_layers_are_given_back_evenly() -> None:
    plan = plan_residency([10] * 40, 0, 10 * (20 + 2))
    assert plan
    smaller = relieved(plan, [10] * 40, 100)
    stay = sorted(set(range(40)) - set(smaller.streamed))
    assert len(stay) == 10
    gaps = [b - a for a, b in pairwise([*stay, stay[0] + 40])]
    assert max(gaps) - min(gaps) <= 2


def test_without_resident_layers_nothing_is_given_back() -> None:
    plan = plan_residency([10] * 8, 20, 40)
    assert plan
    assert relieved(plan, [10] * 8, 5) == plan


def shape(kv: int = 0) -> ModelShape:
    return ModelShape(
        layers=(40 * MB,) * 22, experts=(0,) * 22, kv=(kv,) * 22, embedding=70 * MB, output=70 * MB, is_tied=False,
        largest=70 * MB, n_vocab=32_000, activations=0, gpu_activations=0, state=0,
    )  # fmt: skip


def request(target: ModelShape, draft: ModelShape | None, ram_bytes: int) -> PlacementRequest:
    return PlacementRequest(target=target, draft=draft, gpus=(), ram_bytes=ram_bytes, n_tokens=512, n_rows=0)


def test_the_room_is_what_caches_draft_and_margin_leave() -> None:
    alone = room_for_weights(place(request(shape(), None, 1000 * MB)))
    assert alone == 880 * MB
    assert room_for_weights(place(request(shape(kv=2 * MB), None, 1000 * MB))) == alone - 44 * MB
    draft = ModelShape((10 * MB,), (0,), (0,), 5 * MB, 5 * MB, False, 5 * MB, 32_000, 0, 0, 0)
    assert room_for_weights(place(request(shape(), draft, 1000 * MB))) == alone - 20 * MB


def test_the_margin_is_never_small() -> None:
    assert room_for_weights(place(request(shape(), None, 200 * MB))) == 136 * MB
    assert room_for_weights(place(request(shape(), None, 10 * MB))) == 0
