"""Which layers go to GPUs, on a machine that reports GPUs it does not have: the weights stay in RAM.

And flash attention is off there only where a GPU says that it has no kernel for the model's heads.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType

from specrun.catalog import embedded
from specrun.catalog.gguf_file import GgufFile
from specrun.errors import OutOfMemoryError, UsageError
from specrun.hardware.machine import Device
from specrun.hardware.memory import Memory
from specrun.hardware.model_shape import PlacementRequest
from specrun.hardware.placement import Placement, place
from specrun.llama import LlamaModel, devices, offload_threshold
from specrun.llama_settings import ALL_LAYERS, UNDECIDED, LlamaSettings
from specrun.loading import loading, placing
from specrun.loading.model import Model
from specrun.loading.placing import FirstGuesses, attention_on_gpus, plan_load
from specrun.loading.run_options import NEAR_BUDGET, RunOptions
from specrun.options.speculation_options import SpeculationOptions
from specrun.speculation.drafters.guessed import DRAFTLESS
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF, Plan
from tests.models import random_llama, random_qwen3_moe

GB = 10**9
PLANS = (SPECEXEC.plan(16, 8),)


class Loads:
    """Remembers what models are loaded with, and lets loading fail while too many layers are to go to VRAM."""

    def __init__(self) -> None:
        self.settings: list[LlamaSettings] = []
        self.most_layers = 1000

    def __call__(self, path: Path, settings: LlamaSettings = UNDECIDED, *rest: Any, **named: Any) -> LlamaModel:
        self.settings.append(settings)
        if (settings.gpu_layers or 0) > self.most_layers:
            raise OutOfMemoryError("cannot be loaded: unable to allocate CUDA0 buffer")
        return LlamaModel(path, settings, *rest, **named)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Loads:
    """Every model that the runtime loads."""
    loads = Loads()
    monkeypatch.setattr(loading, "LlamaModel", loads)
    return loads


def have_gpus(monkeypatch: pytest.MonkeyPatch, *free: float) -> None:
    found = [Device(f"CUDA{i}", "a GPU", "GPU", "CUDA", int(n_bytes), int(n_bytes)) for i, n_bytes in enumerate(free)]
    monkeypatch.setattr(devices, "devices", lambda _servers=None: found)


def options(settings: LlamaSettings = UNDECIDED, draft: LlamaSettings = UNDECIDED) -> RunOptions:
    return RunOptions(embedded.TARGET, embedded.DRAFT, PLANS, settings=settings, draft_settings=draft)


def plain(settings: LlamaSettings) -> RunOptions:
    return RunOptions(embedded.TARGET, None, (OFF.plan(),), settings=settings)


def guesses(options: RunOptions) -> FirstGuesses:
    """What is guessed where there are several plans to choose among."""
    return plan_load(replace(options, plans=(DRAFTLESS.plan(8), OFF.plan()))).guesses


def test_without_a_gpu_nothing_is_decided(monkeypatch: pytest.MonkeyPatch, loads: Loads) -> None:
    have_gpus(monkeypatch)
    with Model(options()) as loaded:
        assert loaded.placement is None
    assert loads.settings == [UNDECIDED, UNDECIDED]
    assert plan_load(options()).placement.regime == "in RAM"


def test_both_models_go_to_a_gpu_that_holds_them(monkeypatch: pytest.MonkeyPatch, loads: Loads) -> None:
    have_gpus(monkeypatch, 8 * GB)
    with Model(options()) as loaded:
        assert loaded.placement
        assert loaded.placement.regime == "in VRAM"
        assert loaded.placement.draft_in_vram
        assert loaded.notices == []
        n_units = len(loaded.placement.layer_gpus)
    assert loads.settings[0] == LlamaSettings(gpu_layers=n_units)
    assert loads.settings[1].gpu_layers


@pytest.mark.slow
@pytest.mark.parametrize("n_gpus", [0, 1])
def test_a_load_is_placed_once_by_memory_that_is_read_once(
    n_gpus: int, monkeypatch: pytest.MonkeyPatch, loads: Loads
) -> None:
    have_gpus(monkeypatch, *[8 * GB] * n_gpus)
    requests: list[PlacementRequest] = []
    read, n_reads = Memory.read, 0

    def reading() -> Memory:
        nonlocal n_reads
        n_reads += 1
        return read()

    def placing_it(request: PlacementRequest) -> Placement:
        requests.append(request)
        return place(request)

    monkeypatch.setattr(Memory, "read", reading)
    monkeypatch.setattr(placing, "place", placing_it)
    # With flash attention decided, no trial of kernels asks for this machine.
    asked = options(draft=LlamaSettings(flash_attn="on"))
    with Model(replace(asked, plans=SpeculationOptions().plans(), may_shrink=True)) as loaded:
        assert (loaded.placement is None) == (n_gpus == 0)
    assert loads.settings
    assert (len(requests), n_reads) == (1, 1)
    far = replace(options(), plans=SpeculationOptions().plans(), may_shrink=True, settings=LlamaSettings(gpu_layers=3))
    assert plan_load(far)
    assert len(requests) == (3 if n_gpus else 2), "again with the larger trees that pay where weights are far"


def test_the_users_numbers_win(monkeypatch: pytest.MonkeyPatch, loads: Loads) -> None:
    have_gpus(monkeypatch, 8 * GB, 8 * GB)
    with Model(options(LlamaSettings(gpu_layers=2, threads=1), LlamaSettings(gpu_layers=0))):
        pass
    assert [settings.gpu_layers for settings in loads.settings] == [2, 0]
    assert loads.settings[0].threads == 1


@pytest.mark.parametrize(("gpu_layers", "type_v"), [(0, "bf16"), (3, None)])
def test_without_a_layer_on_a_gpu_a_model_runs_as_on_a_machine_without_one(
    monkeypatch: pytest.MonkeyPatch, gpu_layers: int, type_v: str | None
) -> None:
    have_gpus(monkeypatch, 8 * GB)
    decided = LlamaSettings(gpu_layers=gpu_layers, flash_attn="on")
    with Model(options(decided, decided)) as loaded:
        assert loaded.engine.draft
        contexts = [loaded.engine.target.context, loaded.engine.draft.context]
        assert [context.config.settings.type_v for context in contexts] == [type_v, type_v]
        assert loaded.placement
        assert loaded.placement.can_repack == (gpu_layers == 0)


@pytest.mark.slow
def test_exact_plans_with_and_without_the_draft_leave_the_target_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def layers(plan: Plan, exact: bool, free: float) -> tuple[int | None, ...]:
        have_gpus(monkeypatch, free)
        asked = RunOptions(embedded.TARGET, embedded.DRAFT, (plan,), exact=exact)
        return plan_load(asked).placement.layer_gpus

    sizes = [free * 1_000_000 for free in range(300, 420, 2)]
    plans = [OFF.plan(), SPECEXEC.plan(16, 8), SPECEXEC.plan(100, 10)]
    placed = {exact: [[layers(plan, exact, free) for free in sizes] for plan in plans] for exact in (False, True)}
    assert placed[True][0] == placed[True][1] == placed[True][2]
    assert placed[False][0] != placed[False][1], "otherwise this shows nothing"
    assert len(set(placed[True][0])) > 2


def test_layers_for_a_gpu_that_is_not_there_change_nothing(monkeypatch: pytest.MonkeyPatch, loads: Loads) -> None:
    have_gpus(monkeypatch)
    with Model(plain(LlamaSettings(gpu_layers=ALL_LAYERS))) as loaded:
        assert loaded.engine.target.context.config.settings.type_v == "bf16"
        assert loaded.notices
    assert loads.settings == [UNDECIDED]


def test_it_steps_down_when_loading_fails_and_says_so_once(monkeypatch: pytest.MonkeyPatch, loads: Loads) -> None:
    have_gpus(monkeypatch, 0.5 * GB)
    loads.most_layers = 0
    with Model(options()) as loaded:
        assert loaded.placement
        assert loaded.placement.n_gpu_layers == 0
        assert len(loaded.notices) == 1
        assert "VRAM was too small" in loaded.notices[0]
        loaded.engine.target.set_prompt([1, 2, 3])


def test_it_gives_up_after_a_few_steps(monkeypatch: pytest.MonkeyPatch, loads: Loads) -> None:
    have_gpus(monkeypatch, 8 * GB)
    loads.most_layers = -1
    with pytest.raises(OutOfMemoryError):
        Model(options())
    assert 1 < len(loads.settings) <= 5


def test_the_users_own_number_of_layers_is_not_stepped_down(monkeypatch: pytest.MonkeyPatch, loads: Loads) -> None:
    have_gpus(monkeypatch, 8 * GB)
    loads.most_layers = 1
    with pytest.raises(OutOfMemoryError):
        Model(plain(LlamaSettings(gpu_layers=5)))
    assert {settings.gpu_layers for settings in loads.settings} == {5}
    with Model(plain(LlamaSettings(gpu_layers=ALL_LAYERS))) as loaded:
        assert loaded.placement
        assert loaded.placement.regime == "in VRAM"
    assert loads.settings[-1].gpu_layers == ALL_LAYERS


def test_gpus_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    have_gpus(monkeypatch, 8 * GB, 8 * GB)
    with pytest.raises(UsageError, match="--main-gpu must be between 0 and 1"):
        Model(options(LlamaSettings(main_gpu=2)))
    with pytest.raises(UsageError, match=r"one share for each GPU \(CUDA0, CUDA1\); got 3 shares"):
        Model(options(LlamaSettings(tensor_split=(1, 1, 1))))


def test_in_one_memory_the_share_of_experts_is_that_of_the_bytes(tmp_path: Path) -> None:
    path = random_qwen3_moe(tmp_path / "moe.gguf", n_layer=4, n_expert=8)
    growth = guesses(RunOptions(path, None, PLANS)).experts
    assert growth
    assert (growth.n_experts, growth.n_used) == (8, 2)
    file = GgufFile.read(path)
    read = sum(file.expert_bytes) / 4
    dense = file.n_bytes - sum(file.expert_bytes) - file.embedding_bytes
    assert growth.share == pytest.approx(read / (read + dense), rel=0.01)


def test_where_experts_come_from_disk_they_take_nearly_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = random_qwen3_moe(tmp_path / "moe.gguf", n_layer=4, n_expert=8)
    in_ram = guesses(RunOptions(path, None, PLANS)).experts
    monkeypatch.setattr(Memory, "read", lambda: Memory(1000, 1000))
    streamed = guesses(RunOptions(path, None, PLANS)).experts
    assert in_ram
    assert streamed
    assert in_ram.share < 0.8 < streamed.share < 1


def test_a_dense_model_has_no_share_of_experts() -> None:
    assert guesses(plain(UNDECIDED)).experts is None


def test_weights_are_far_where_passes_wait_for_a_disk_or_for_ram_beside_vram(monkeypatch: pytest.MonkeyPatch) -> None:
    assert guesses(plain(UNDECIDED)).largest == NEAR_BUDGET
    with monkeypatch.context() as patched:
        have_gpus(patched, 8 * GB)
        assert guesses(plain(UNDECIDED)).largest == NEAR_BUDGET, "all layers are in VRAM"
        assert guesses(plain(LlamaSettings(gpu_layers=2))).largest > NEAR_BUDGET
    monkeypatch.setattr(Memory, "read", lambda: Memory(1000, 1000))
    assert guesses(plain(UNDECIDED)).largest >= NEAR_BUDGET


def test_large_passes_copy_weights_where_some_lie_in_ram_and_may_be_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    def copies_from(settings: LlamaSettings) -> int | None:
        return guesses(plain(settings)).copies_from

    assert copies_from(UNDECIDED) is None, "there is no card"
    have_gpus(monkeypatch, 8 * GB)
    assert copies_from(LlamaSettings(gpu_layers=ALL_LAYERS)) is None
    assert copies_from(LlamaSettings(gpu_layers=5)) == offload_threshold.in_use()
    assert copies_from(LlamaSettings(gpu_layers=5, op_offload=False)) is None
    assert copies_from(LlamaSettings(gpu_layers=5, repack=True)) is None


def test_a_split_mode_that_the_backend_lacks_is_refused_where_layers_lie_in_vram(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    have_gpus(monkeypatch, 10 * GB)
    monkeypatch.setattr(devices, "without_split_buffers", lambda _servers: ["CUDA0"])
    with pytest.raises(UsageError, match=r"--split-mode row is not possible here.*CUDA0"):
        plan_load(plain(LlamaSettings(split_mode="row")))
    assert plan_load(plain(LlamaSettings(split_mode="row", gpu_layers=0)))
    assert plan_load(plain(LlamaSettings(split_mode="layer")))
    monkeypatch.setattr(devices, "without_split_buffers", lambda _servers: [])
    assert plan_load(plain(LlamaSettings(split_mode="row")))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (LlamaSettings(), "off"),
        (LlamaSettings(type_k="q8_0"), "off"),
        (LlamaSettings(flash_attn="on"), "on"),
        (LlamaSettings(flash_attn="auto"), "auto"),
        (LlamaSettings(type_v="q8_0"), None),  # llama.cpp refuses such a cache without flash attention
    ],
)
def test_flash_attention_is_off_without_a_kernel_unless_the_user_decided_it(
    settings: LlamaSettings, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def no_kernel(*heads: object) -> bool:
        asked.append(heads[:3])
        return False

    monkeypatch.setattr(placing, "gpus_have_flash", no_kernel)
    assert attention_on_gpus(GgufFile.read(embedded.TARGET), settings).flash_attn == expected
    assert asked == ([(8, 2, 32)] if expected == "off" else [])


def test_flash_attention_stays_on_with_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "gpus_have_flash", lambda *_: True)
    assert attention_on_gpus(GgufFile.read(embedded.TARGET), LlamaSettings()) == LlamaSettings()


def test_no_kernel_is_asked_for_heads_that_a_type_of_k_does_not_divide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = GgufFile.read(random_llama(tmp_path / "a.gguf", n_embd=96, n_head=2, weight_type=GGMLQuantizationType.F32))
    monkeypatch.delattr(placing, "gpus_have_flash")
    assert attention_on_gpus(file, LlamaSettings(type_k="q8_0")).flash_attn is None
