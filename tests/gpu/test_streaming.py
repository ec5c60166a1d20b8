"""Weights that fit neither into VRAM nor into RAM: layers on the device, in RAM and streamed, in any numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.layer_states import n_bytes, weight_pages
from specrun.hardware.fit import ResidencyPlan, plan_residency
from specrun.llama.streaming.address_space import PAGE
from specrun.llama.streaming.cached_experts import CachedExperts
from specrun.llama_settings import ALL_LAYERS, LlamaSettings, ResidencyChoice
from specrun.loading import residency
from specrun.loading.model import Model
from specrun.loading.run_options import RunOptions
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF
from specrun.speculation.tree import TokenTree
from tests.models import random_llama, random_qwen3_moe
from tests.streams import written

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

N_LAYERS = 8


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_llama(tmp_path_factory.mktemp("dense") / "m.gguf", n_layer=N_LAYERS)


@contextmanager
def loaded(target: Path, settings: LlamaSettings, choice: ResidencyChoice = "auto") -> Iterator[Model]:
    """settings: to which those are added that streaming takes, so that only the ring makes a difference."""
    settings = replace(settings, threads=1, op_offload=False, load_mode="mmap")
    plans, largest = (OFF.plan(),), SPECEXEC.plan(32, 8)
    with Model(RunOptions(target, None, plans, largest, ctx_size=512, settings=settings, residency=choice)) as model:
        yield model


def without_streaming(target: Path, settings: LlamaSettings) -> list[bytes]:
    with loaded(target, settings, "off") as model:
        assert model.residency.mode == "off"
        return written(model.engine.target.context)


def limit(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    monkeypatch.setattr(residency, "room_in_ram", lambda *_: room)


def plan_of(dense: Path, n_vram: int, n_resident: int) -> tuple[ResidencyPlan, int]:
    """The plan in which so many of the layers in RAM stay there beside two slots, and the room for it."""
    pages = weight_pages(GgufFile.read(dense), PAGE, settings=LlamaSettings(gpu_layers=n_vram))
    assert len(pages.layers) == min(N_LAYERS, N_LAYERS + 1 - n_vram)
    room = n_bytes(pages.others) + (n_resident + 2) * max(pages.layer_bytes)
    plan = plan_residency(pages.layer_bytes, n_bytes(pages.others), room)
    assert plan
    return plan, room


@pytest.mark.parametrize(("n_vram", "n_resident"), [(0, 2), (1, 0), (3, 0), (3, 2), (5, 1), (6, 0), (8, 0)])
def test_every_pass_has_the_same_bits(
    n_vram: int, n_resident: int, dense: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 6 of 9 in VRAM, three layers take turns in two slots; with 8 the only one in RAM stays there."""
    settings = LlamaSettings(gpu_layers=n_vram)
    expected = without_streaming(dense, settings)
    plan, room = plan_of(dense, n_vram, n_resident)
    limit(monkeypatch, room)
    with loaded(dense, settings) as model:
        assert model.notices == []
        held = model.residency
        assert (held.mode == "ring") == (n_vram < 8) == bool(plan.streamed)
        if plan.streamed:
            assert (held.resident_bytes, held.streamed_bytes) == (plan.resident_bytes, plan.streamed_bytes)
        assert written(model.engine.target.context) == expected


def test_every_pass_reads_the_streamed_layers_once(dense: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, room = plan_of(dense, 3, 2)
    limit(monkeypatch, room)
    with loaded(dense, LlamaSettings(gpu_layers=3)) as model:
        target, weights = model.engine.target, model.engine.target.context.weights
        assert weights
        target.set_prompt([1, 2, 3])
        n_passes, before = 20, weights.bytes_read
        for _ in range(n_passes):
            target.score(TokenTree.root_only(3))
            target.drop_tree()
        read = weights.bytes_read - before
        # The slots may have been empty at first, and may be full in the end.
        assert abs(read - n_passes * plan.streamed_bytes) <= plan.n_slots * plan.slot_bytes
        assert weights.wait_seconds > 0


@pytest.mark.parametrize(("n_vram", "n_cpu_moe"), [(2, None), (5, ALL_LAYERS), (5, 2), (3, ALL_LAYERS)])
def test_experts(n_vram: int, n_cpu_moe: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Routers in RAM, in VRAM, and on both sides: the bits are the same, and those experts are read that are used."""
    target = random_qwen3_moe(tmp_path / "moe.gguf", n_layer=4, n_expert=8)
    settings = LlamaSettings(gpu_layers=n_vram, n_cpu_moe=n_cpu_moe)
    expected = without_streaming(target, settings)
    limit(monkeypatch, 10**8)
    on_cpu = read_for_a_token(target, LlamaSettings(gpu_layers=0), monkeypatch)
    assert [len(experts) for experts in on_cpu.values()] == [2] * 4
    n_layers = 2 if n_cpu_moe == 2 else 3 if n_cpu_moe is None else 4
    found = read_for_a_token(target, settings, monkeypatch)
    assert list(found.items()) == list(on_cpu.items())[:n_layers]
    with loaded(target, settings) as model:
        assert written(model.engine.target.context) == expected


def read_for_a_token(target: Path, settings: LlamaSettings, monkeypatch: pytest.MonkeyPatch) -> dict[int, list[int]]:
    """The experts of each layer that a pass over one token reads."""
    found: dict[int, list[int]] = {}
    with monkeypatch.context() as patch:
        read = CachedExperts._read

        def noted(weights: CachedExperts, layer: int, counts: NDArray[np.int64]) -> None:
            found[layer] = np.flatnonzero(counts).tolist()
            read(weights, layer, counts)

        patch.setattr(CachedExperts, "_read", noted)
        with loaded(target, settings) as model:
            assert model.notices == []
            assert model.residency.cache_bytes > 0
            model.engine.target.set_prompt([5, 6])
            found.clear()
            model.engine.target.score(TokenTree.root_only(6))
    return found
