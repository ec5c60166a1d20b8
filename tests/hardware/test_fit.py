"""Whether a model fits, by placement, and what is read for a token."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specrun.hardware.fit import Rates, _seconds, fit
from specrun.hardware.model_shape import ModelShape
from specrun.hardware.placement import place
from specrun.hardware.residency import room_for_weights
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
