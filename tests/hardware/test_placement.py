"""Placement: never over budget, more memory never makes it worse, the draft first, experts out before attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from specrun.catalog import embedded
from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.layer_states import kv_bytes_per_token
from specrun.hardware.fit import plan_residency, room_for_weights
from specrun.hardware.machine import Device, DeviceKind
from specrun.hardware.model_shape import ModelShape, PlacementRequest
from specrun.hardware.placement import Placement, counts_of_split, divide, fill, holds, place
from specrun.llama_settings import ALL_LAYERS, UNDECIDED, LlamaSettings
from tests.models import random_gemma3, random_qwen3_moe

MB, GB = 10**6, 10**9


def shape(
    n_layers: int = 32, layer: int = 400 * MB, experts: int = 0, kv: int = 16 * MB, output: int = 500 * MB
) -> ModelShape:
    """A model whose layers are all alike; 32 k tokens of vocabulary, 100 kB of activations for a token."""
    return ModelShape(
        layers=(layer,) * n_layers,
        experts=(experts,) * n_layers,
        kv=(kv,) * n_layers,
        embedding=300 * MB,
        output=output,
        is_tied=False,
        largest=max(output, experts // 3, layer // 4),
        n_vocab=32_000,
        activations=100_000,
        gpu_activations=100_000,
        state=16_384,
    )


DRAFT = shape(n_layers=8, layer=50 * MB, kv=4 * MB, output=100 * MB)
DENSE = shape()
MOE = shape(layer=60 * MB, experts=700 * MB)


def gpu(free: int, name: str = "CUDA0") -> Device:
    return Device(name, "a GPU", "GPU", "CUDA", free, free + GB)


def request(target: ModelShape, *free: int, draft: ModelShape | None = DRAFT, ram: int = 64 * GB) -> PlacementRequest:
    gpus = tuple(gpu(n_bytes, f"CUDA{i}") for i, n_bytes in enumerate(free))
    return PlacementRequest(target, draft, gpus, ram, n_tokens=576, n_rows=64)


def rank(placement: Placement) -> tuple[int, int, int, int]:
    """What placement maximizes, the most important first."""
    offloads = placement.settings.op_offload is not False
    return placement.draft_in_vram, offloads, placement.n_gpu_layers, -placement.n_cpu_moe


def random_requests(n: int, most_gpus: int = 4) -> Iterator[PlacementRequest]:
    rng = np.random.default_rng(0)
    for _ in range(n):
        n_layers = int(rng.integers(1, 64))
        experts = rng.integers(0, 900, n_layers) * MB * int(rng.integers(2))
        target = ModelShape(
            layers=tuple((rng.integers(10, 600, n_layers) * MB).tolist()),
            experts=tuple(experts.tolist()),
            kv=tuple((rng.integers(0, 50, n_layers) * MB).tolist()),
            embedding=int(rng.integers(0, 800)) * MB,
            output=int(rng.integers(1, 800)) * MB,
            is_tied=bool(rng.integers(2)),
            largest=int(rng.integers(1, 900)) * MB,
            n_vocab=int(rng.integers(1000, 200_000)),
            activations=int(rng.integers(10_000, 500_000)),
            gpu_activations=int(rng.integers(10_000, 500_000)),
            state=int(rng.integers(1000, 30_000)),
        )
        free = rng.integers(0, 30_000, int(rng.integers(1, most_gpus + 1))) * MB
        draft = DRAFT if rng.integers(2) else None
        yield request(target, *free.tolist(), draft=draft, ram=int(rng.integers(1, 100)) * GB)


@pytest.mark.slow
def test_never_over_budget() -> None:
    for wanted in random_requests(300):
        placement = place(wanted)
        for index, site in enumerate(placement.gpus):
            assert site.used_bytes <= wanted.budget(index) < site.free_bytes or site.used_bytes == 0
            assert site.used_bytes <= max(site.free_bytes * 0.95 - 300 * MB, 0)


@pytest.mark.slow
def test_more_memory_never_makes_it_worse() -> None:
    for wanted in random_requests(150, most_gpus=1):
        ranks = []
        for more in (0, 100 * MB, GB, 4 * GB, 20 * GB):
            larger = replace(wanted.gpus[0], free_bytes=wanted.gpus[0].free_bytes + more)
            ranks.append(rank(place(replace(wanted, gpus=(larger,)))))
        assert ranks == sorted(ranks)


def test_every_byte_is_somewhere() -> None:
    for wanted in random_requests(100):
        placement = place(wanted)
        parts: dict[str, int] = {}
        for site in (*placement.gpus, placement.ram):
            for name, n_bytes in site.parts.items():
                parts[name] = parts.get(name, 0) + n_bytes
        target, draft = wanted.target, wanted.draft
        output = 0 if target.is_tied and not placement.n_gpu_layers else target.output
        assert parts.get("target", 0) == sum(target.layers) + target.embedding + output
        assert parts.get("experts", 0) == sum(target.experts)
        assert parts.get("KV cache", 0) == sum(target.kv) + (sum(draft.kv) if draft else 0)
        if draft:
            assert parts["draft"] == sum(draft.layers) + draft.embedding + draft.output


def test_the_draft_comes_first_and_whole() -> None:
    # 1.4 GB: room for the draft, and hardly for anything else.
    small = place(request(DENSE, 1400 * MB))
    assert small.draft_in_vram
    assert small.n_gpu_layers == 0
    assert small.draft_settings == LlamaSettings(gpu_layers=9)
    tiny = place(request(DENSE, 700 * MB))
    assert not tiny.draft_in_vram
    assert tiny.draft_settings == LlamaSettings()


def test_layers_come_from_the_last_and_the_rest_stays_in_ram() -> None:
    placement = place(request(DENSE, 8 * GB))
    n = placement.n_gpu_layers
    assert 0 < n < 33
    assert placement.layer_gpus == (None,) * (33 - n) + (0,) * n
    assert placement.settings == LlamaSettings(gpu_layers=n)
    assert placement.regime == "partly in VRAM"
    assert placement.ram.parts["target"] == 300 * MB + (33 - n) * 400 * MB


def test_regimes() -> None:
    assert place(request(DENSE, 24 * GB)).regime == "in VRAM"
    assert place(request(DENSE, 8 * GB)).regime == "partly in VRAM"
    assert place(request(DENSE)).regime == "in RAM"
    assert place(request(DENSE, ram=8 * GB)).regime == "streamed"
    assert place(request(DENSE, 4 * GB, ram=8 * GB)).regime == "streamed"
    assert place(request(DENSE, 24 * GB, ram=8 * GB)).regime == "in VRAM"


def integrated(kind: DeviceKind = "IGPU", name: str = "a GPU") -> Device:
    return Device("Vulkan0", name, kind, "Vulkan", 16 * GB, 16 * GB)


@pytest.mark.parametrize("device", [integrated(), integrated(kind="GPU", name="llvmpipe (LLVM 15.0.7, 256 bits)")])
def test_what_lies_on_an_integrated_gpu_takes_ram(device: Device) -> None:
    """13.9 GB of weights: a card of 16 GB holds them beside 10 GB of RAM, and a GPU that uses this RAM does not."""
    wanted = replace(request(DENSE, 16 * GB, draft=None, ram=10 * GB))
    assert place(wanted).regime == "in VRAM"
    shared = place(replace(wanted, gpus=(device,)))
    assert shared.regime == "streamed"
    assert shared.vram_bytes <= 10 * GB
    assert shared.ram.free_bytes == 10 * GB - shared.vram_bytes
    in_ram = DENSE.layers[: shared.layer_gpus[:-1].count(None)]
    assert plan_residency(in_ram, shared.ram.parts["target"] - sum(in_ram), room_for_weights(shared))
    assert place(replace(wanted, gpus=(device,), ram_bytes=20 * GB)).regime == "in VRAM"
    assert place(replace(wanted, gpus=(device,), ram_bytes=GB)).n_gpu_layers == 0


@pytest.mark.slow
def test_integrated_gpus_never_take_more_than_the_ram() -> None:
    for wanted in random_requests(300, most_gpus=2):
        shared = replace(wanted, gpus=tuple(replace(one, kind="IGPU") for one in wanted.gpus))
        placement = place(shared)
        assert placement.vram_bytes <= max(shared.ram_bytes - 300 * MB, 0)
        if placement.regime != "streamed":
            assert placement.vram_bytes + placement.ram.used_bytes <= shared.ram_bytes


def test_repacking_is_for_weights_in_ram_and_nothing_else() -> None:
    assert place(request(DENSE)).can_repack
    assert not place(request(DENSE, ram=8 * GB)).can_repack
    assert not place(request(DENSE, 8 * GB)).can_repack
    assert place(replace(request(DENSE, 8 * GB), settings=LlamaSettings(gpu_layers=0))).can_repack


def test_experts_leave_vram_before_attention() -> None:
    previous = place(request(MOE, 40 * GB))
    assert (previous.n_gpu_layers, previous.n_cpu_moe, previous.regime) == (33, 0, "in VRAM")
    seen = set()
    for free in range(39_000, 0, -250):
        placement = place(request(MOE, free * MB))
        if placement.n_gpu_layers < 33:
            assert placement.n_cpu_moe == 32
        seen.add((placement.n_gpu_layers == 33, placement.n_cpu_moe == 32))
    assert seen == {(True, False), (True, True), (False, True)}
    middle = place(request(MOE, 16 * GB))
    assert middle.settings == LlamaSettings(gpu_layers=33, n_cpu_moe=middle.n_cpu_moe)
    assert middle.regime == "partly in VRAM"
    assert middle.ram.parts["experts"] == middle.n_cpu_moe * 700 * MB


def test_several_gpus_share_by_what_they_have() -> None:
    placement = place(request(DENSE, 16 * GB, 8 * GB))
    assert placement.regime == "in VRAM"
    assert placement.settings.tensor_split
    first, second = placement.settings.tensor_split
    assert first + second == 33
    assert first > second > 0
    assert placement.draft_settings.tensor_split == (1, 0)  # the draft is on the GPU with most room
    used = [site.used_bytes / site.free_bytes for site in placement.gpus]
    assert abs(used[0] - used[1]) < 0.15


def test_rpc_servers_hold_what_this_machine_has_no_room_for_and_no_draft() -> None:
    server = Device("RPC0", "10.0.0.2:50052", "GPU", "RPC", 100 * GB, 100 * GB)
    asked = request(DENSE, 8 * GB)
    both = replace(asked, gpus=(server, *asked.gpus))
    placement = place(both)
    assert placement.regime == "in VRAM"
    assert placement.draft_in_vram
    assert "draft" not in placement.gpus[0].parts
    assert placement.gpus[1].parts["draft"]
    alone = place(asked)
    assert 0 < placement.layer_gpus.count(1) <= alone.n_gpu_layers + 1
    assert placement.layer_gpus.count(1) >= alone.n_gpu_layers - 1
    assert placement.gpus[1].used_bytes <= both.budget(1)
    fits = place(replace(both, gpus=(server, gpu(60 * GB))))
    assert fits.layer_gpus == (1,) * DENSE.n_units


def test_with_rpc_servers_alone_the_draft_stays_in_ram_unless_it_is_told_otherwise() -> None:
    server = Device("RPC0", "10.0.0.2:50052", "GPU", "RPC", 100 * GB, 100 * GB)
    asked = replace(request(DENSE), gpus=(server,))
    placement = place(asked)
    assert placement.regime == "in VRAM"
    assert placement.draft_settings == UNDECIDED
    assert placement.ram.parts["draft"]
    assert placement.settings.op_offload is None
    assert place(replace(asked, draft_settings=LlamaSettings(gpu_layers=ALL_LAYERS))).draft_in_vram


def test_a_full_first_gpu_is_left_out_of_offloading() -> None:
    placement = place(request(DENSE, 100 * MB, 8 * GB))
    assert placement.settings.op_offload is False
    assert placement.settings.tensor_split == (0, placement.n_gpu_layers)
    assert placement.n_gpu_layers > 0
    assert placement.draft_settings.tensor_split == (0, 1)


def test_where_no_pass_is_large_enough_nothing_is_kept_free_for_offloading() -> None:
    full = request(DENSE, 100 * MB, 8 * GB)
    assert place(replace(full, settings=LlamaSettings(offload_min_batch=577))).settings.op_offload is None
    assert place(replace(full, settings=LlamaSettings(offload_min_batch=576))).settings.op_offload is False


def test_the_users_decisions_are_kept() -> None:
    wanted = request(MOE, 16 * GB, 16 * GB)

    def with_settings(settings: LlamaSettings, draft: LlamaSettings = UNDECIDED) -> Placement:
        return place(replace(wanted, settings=settings, draft_settings=draft))

    assert with_settings(LlamaSettings(gpu_layers=5)).n_gpu_layers == 5
    assert with_settings(LlamaSettings(gpu_layers=ALL_LAYERS)).n_gpu_layers == 33
    assert with_settings(LlamaSettings(gpu_layers=0)).vram_bytes > 0  # the draft
    assert with_settings(LlamaSettings(gpu_layers=0), LlamaSettings(gpu_layers=0)).vram_bytes == 0
    assert with_settings(LlamaSettings(n_cpu_moe=32)).n_cpu_moe == 32
    assert with_settings(LlamaSettings(n_cpu_moe=ALL_LAYERS)).n_cpu_moe == 32
    beyond = with_settings(LlamaSettings(gpu_layers=ALL_LAYERS, n_cpu_moe=0, tensor_split=(1,)))
    assert (beyond.n_gpu_layers, beyond.n_cpu_moe, set(beyond.layer_gpus)) == (33, 0, {0})
    alone = with_settings(LlamaSettings(split_mode="none", main_gpu=1))
    assert set(alone.layer_gpus) <= {None, 1}
    assert alone.gpus[0].used_bytes == 0
    assert with_settings(LlamaSettings(), LlamaSettings(gpu_layers=0)).draft_settings == LlamaSettings()
    assert with_settings(LlamaSettings(), LlamaSettings(gpu_layers=3)).draft_settings.gpu_layers == 3


def test_step_down_ends_in_ram() -> None:
    for wanted in (request(DENSE, 8 * GB), request(MOE, 16 * GB, 12 * GB), request(DENSE, 40 * GB, draft=None)):
        placement: Placement | None = place(wanted)
        steps = []
        while placement:
            steps.append(placement.vram_bytes)
            last, placement = placement, placement.step_down()
        assert steps == sorted(set(steps), reverse=True)
        assert steps[-1] == 0
        assert (last.n_gpu_layers, last.draft_in_vram) == (0, False)
    assert place(request(DENSE)).step_down() is None


def test_step_down_cannot_change_the_users_numbers() -> None:
    fixed = replace(request(DENSE, 8 * GB, draft=None), settings=LlamaSettings(gpu_layers=ALL_LAYERS))
    assert place(fixed).step_down() is None


def test_shapes_of_files(tmp_path: Path) -> None:
    f16 = LlamaSettings()
    for path in (embedded.TARGET, random_gemma3(tmp_path / "tied.gguf", window=8)):
        file = GgufFile.read(path)
        of_file = ModelShape.of(file, 1000, f16)
        tied = file.output_bytes if of_file.is_tied else 0
        assert sum(of_file.layers) + of_file.embedding + of_file.output - tied == file.n_bytes
        assert sum(of_file.kv) == 1024 * sum(kv_bytes_per_token(file))
        assert not of_file.is_moe
        assert ModelShape.of(file, 1000, LlamaSettings(type_k="f32")).kv > of_file.kv
        without = ModelShape.of(file, 1000, LlamaSettings(flash_attn="off"))
        assert without.activations > of_file.activations
        assert without.gpu_activations > of_file.gpu_activations
    moe = ModelShape.of(GgufFile.read(random_qwen3_moe(tmp_path / "moe.gguf", n_layer=3)), 1000, f16)
    assert moe.experts == (4 * 3 * 64 * 32 * 4,) * 3


@pytest.mark.parametrize("n_gpu_layers", [0, 1, 16, 33])
def test_the_output_is_the_last_layer(n_gpu_layers: int) -> None:
    fixed = replace(request(DENSE, 40 * GB, draft=None), settings=LlamaSettings(gpu_layers=n_gpu_layers))
    parts = place(fixed).gpus[0].parts
    expected = 500 * MB + (n_gpu_layers - 1) * 400 * MB if n_gpu_layers else 0
    assert parts.get("target", 0) == expected


# --- layers among GPUs ---------------------------------------------------------------------------------------------


def test_fill_takes_the_first_room_first() -> None:
    assert fill([1, 1, 1], [2, 5]) == [2, 1]
    assert fill([3, 1], [2, 5]) == [0, 2]
    assert fill([1, 1, 1], [1, 1]) is None
    assert fill([], [0, 0]) == [0, 0]


def test_divided_layers_fit_and_fill_all_gpus_alike() -> None:
    assert divide([1] * 30, [40, 20]) == [20, 10]
    rng = np.random.default_rng(0)
    for _ in range(200):
        units = rng.integers(1, 100, int(rng.integers(1, 40))).tolist()
        rooms = rng.integers(0, 2000, int(rng.integers(1, 5))).tolist()
        counts = divide(units, rooms)
        assert (counts is None) == (fill(units, rooms) is None)
        if counts:
            assert sum(counts) == len(units)
            assert holds(units, counts, rooms)


def test_remote_gpus_get_what_the_others_have_no_room_for() -> None:
    assert divide([1] * 30, [90, 20, 20], {0}) == [0, 15, 15]
    assert divide([1] * 30, [90, 10, 5], {0}) == [15, 10, 5]
    assert divide([1] * 30, [20, 10, 10], {0, 1}) == [14, 7, 9]
    assert divide([1] * 30, [20, 10], {0, 1}) == divide([1] * 30, [20, 10]) == [20, 10]
    assert divide([1] * 30, [10, 10], {0}) is None


def test_a_split_by_counts_gives_these_counts() -> None:
    rng = np.random.default_rng(0)
    for _ in range(500):
        counts = rng.integers(0, 70, int(rng.integers(1, 9))).tolist()
        if sum(counts):
            assert counts_of_split(counts, len(counts), sum(counts)) == counts


def test_shares() -> None:
    assert counts_of_split((3, 1), 2, 33) == [25, 8]
    assert counts_of_split((1,), 3, 10) == [10, 0, 0]
    assert counts_of_split((0, 1, 5), 2, 10) == [0, 10]
    assert counts_of_split((1, 1), 2, 0) == [0, 0]
