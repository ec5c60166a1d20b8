"""The settings of a target that nobody has tuned, and the trial of one of them: what is measured, kept and followed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specrun import kept_facts
from specrun.catalog import embedded
from specrun.catalog.gguf_file import GgufFile
from specrun.errors import LlamaError
from specrun.hardware.machine import Device
from specrun.hardware.memory import Memory
from specrun.hardware.model_shape import MARGIN_BYTES
from specrun.llama import devices, library, tiled_kernels
from specrun.llama.quantizer import quantize
from specrun.llama_settings import UNDECIDED, LlamaSettings
from specrun.loading import default_settings
from specrun.loading.default_settings import (
    SIZES,
    TILED_SIZES,
    attention_of,
    file_order_from,
    mapped_if_short,
    of_draft,
    smallest,
    tiled_from,
    with_defaults,
)
from specrun.loading.model import Model
from specrun.loading.placing import plan_load
from specrun.loading.run_options import RunOptions
from specrun.locations import data_dir
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF
from tests.eagle_heads import random_eagle3
from tests.models import random_llama, random_qwen3_moe, wide_target
from tests.profiles.test_profile import made as made_profile
from tests.streams import CONFIG, context, written

_Q4_0, _Q4_K_M = 2, 15  # llama_ftype


@pytest.fixture(scope="module")
def q4_0(random_model: Path, made: Path) -> Path:
    path = made / "random-q4_0.gguf"
    quantize(str(random_model), str(path), _Q4_0, [], 1)
    return path


def options(target: Path) -> RunOptions:
    return RunOptions(target, None, (OFF.plan(),))


def defaulted(options: RunOptions) -> RunOptions:
    return with_defaults(plan_load(options)).options


def test_llama_cpps_own_settings_where_no_exactness_is_lost(q4_0: Path) -> None:
    settings = defaulted(options(q4_0)).settings
    assert settings == LlamaSettings(repack=True, type_k="f16", type_v="f16", flash_attn="off")


@pytest.mark.parametrize(("n_texts", "is_off"), [(4, True), (5, False)])
def test_narrow_heads_do_without_flash_attention_which_reads_only_a_texts_own_cells(
    q4_0: Path, n_texts: int, is_off: bool
) -> None:
    assert GgufFile.read(q4_0).heads == (2, 1, 32)
    assert (defaulted(replace(options(q4_0), parallel=n_texts)).settings.flash_attn == "off") == is_off


def test_other_heads_and_what_the_user_decided_keep_flash_attention(q4_0: Path, tmp_path: Path) -> None:
    wide = GgufFile.read(random_llama(tmp_path / "wide.gguf", n_embd=128))
    assert wide.heads == (2, 1, 64)
    without_q = replace(wide, tensors=tuple(tensor for tensor in wide.tensors if "attn_q" not in tensor.name))
    assert without_q.heads is None
    assert [attention_of(file, UNDECIDED, 1) for file in (wide, without_q)] == [UNDECIDED, UNDECIDED]
    for decided in (LlamaSettings(flash_attn="on"), LlamaSettings(type_k="f32"), LlamaSettings(type_v="bf16")):
        asked = replace(options(q4_0), settings=decided)
        assert defaulted(asked).settings.flash_attn == decided.flash_attn
    assert defaulted(replace(options(q4_0), exact=True)).settings.flash_attn is None


@pytest.mark.slow
@pytest.mark.parametrize("is_wide", [False, True])
def test_a_draft_of_narrow_heads_does_without_and_the_text_stays_the_targets_own(is_wide: bool, tmp_path: Path) -> None:
    draft = random_eagle3(tmp_path / "head.gguf") if is_wide else embedded.DRAFT
    texts = []
    for plan in (SPECEXEC.plan(16, 8), OFF.plan()):
        with Model(RunOptions(embedded.TARGET, draft, (plan,), ctx_size=512)) as model:
            texts.append("".join(model.stream("def read(path):", raw=True, max_tokens=64, temp=0)))
            if plan.drafts:
                assert model.engine.draft
                assert model.engine.draft.context.config.settings.flash_attn == (None if is_wide else "off")
    assert texts[0] == texts[1]


def test_v_stays_open_where_the_type_of_k_is_decided(q4_0: Path) -> None:
    decided = replace(options(q4_0), settings=LlamaSettings(type_k="q8_0"))
    assert defaulted(decided).settings == LlamaSettings(repack=True, type_k="q8_0")


def test_a_type_whose_bits_do_not_depend_on_the_pass_keeps_its_settings() -> None:
    assert defaulted(options(embedded.TARGET)).settings == UNDECIDED


def test_what_the_user_decided_stays(q4_0: Path) -> None:
    decided = replace(options(q4_0), settings=LlamaSettings(repack=False, type_v="bf16"))
    exact = replace(options(q4_0), exact=True)
    assert defaulted(decided) == decided
    assert defaulted(exact) == exact


@pytest.mark.slow
def test_exact_passes_over_streamed_weights_all_use_one_kernel(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    k_quant = made / "random-q4_k_m.gguf"
    random_llama(made / "wide-enough.gguf", n_embd=256)
    quantize(str(made / "wide-enough.gguf"), str(k_quant), _Q4_K_M, [], 1)
    exact = replace(options(k_quant), exact=True)
    monkeypatch.setattr(tiled_kernels, "_settled", None)
    monkeypatch.setattr(tiled_kernels.platform, "machine", lambda: "x86_64")
    assert defaulted(exact) == exact, "in RAM a plain pass would take several times as long"
    monkeypatch.setattr(Memory, "read", lambda: Memory(1000, 1000))
    assert defaulted(exact).settings == LlamaSettings(tiled="always")
    decided = replace(exact, settings=LlamaSettings(repack=True))
    assert defaulted(decided) == decided
    monkeypatch.setattr(tiled_kernels, "_settled", "auto")
    assert defaulted(exact) == exact, "another model of this process has been computed with other kernels"


def test_weights_that_are_streamed_are_not_reordered(q4_0: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Memory, "read", lambda: Memory(1000, 1000))
    assert defaulted(options(q4_0)).settings == LlamaSettings(type_v="f16")


def boundary(options: RunOptions) -> int:
    """The least bytes of free RAM with which all that is planned to lie there fits."""
    return plan_load(options).placement.ram.used_bytes + MARGIN_BYTES


def test_experts_are_read_into_memory_where_they_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = random_qwen3_moe(tmp_path / "moe.gguf", n_layer=4, n_expert=8)
    assert defaulted(options(path)).settings == LlamaSettings(load_mode="none"), "its type keeps bits"
    exact = replace(options(path), exact=True)
    assert defaulted(exact).settings == LlamaSettings(load_mode="none")
    decided = replace(options(path), settings=LlamaSettings(load_mode="mmap"))
    assert defaulted(decided) == decided
    least = boundary(options(path))
    for free, load_mode in ((least, "none"), (least - 1, None)):
        monkeypatch.setattr(Memory, "read", lambda free=free: Memory(free, free))
        assert defaulted(options(path)).settings.load_mode == load_mode


@pytest.mark.parametrize("exact", [False, True])
def test_weights_that_a_gpu_copies_are_read_into_memory_where_they_fit(
    exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load_mode(gpu: Device, **decided: Any) -> str | None:
        monkeypatch.setattr(devices, "devices", lambda _servers=None: [gpu])
        asked = replace(options(embedded.TARGET), exact=exact, settings=LlamaSettings(**decided))
        return defaulted(asked).settings.load_mode

    gpu = Device("CUDA0", "a GPU", "GPU", "CUDA", 10**9, 10**9, pins=True)
    assert load_mode(gpu, gpu_layers=4) == "none"
    assert load_mode(gpu, gpu_layers=4, load_mode="mmap") == "mmap", "the user decides"
    assert load_mode(gpu) is None, "nothing is copied from RAM"
    assert load_mode(gpu, gpu_layers=0) is None
    assert load_mode(replace(gpu, pins=False), gpu_layers=4) is None, "as fast from a mapped file"
    split = replace(options(embedded.TARGET), exact=exact, settings=LlamaSettings(gpu_layers=4))
    least = boundary(split)
    for free, expected in ((least, "none"), (least - 1, None)):
        monkeypatch.setattr(Memory, "read", lambda free=free: Memory(free, free))
        assert load_mode(gpu, gpu_layers=4) == expected


def test_weights_that_a_profile_has_read_into_memory_are_mapped_where_they_do_not_fit_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    profile = made_profile()
    tuned = replace(options(embedded.TARGET), profile=replace(profile, settings=LlamaSettings(load_mode="none")))

    def load_mode(asked: RunOptions) -> str | None:
        return mapped_if_short(plan_load(asked), asked.settings).options.settings.load_mode

    assert load_mode(tuned) == "none"
    mapped = replace(tuned, profile=replace(profile, settings=UNDECIDED))
    decided = replace(tuned, settings=LlamaSettings(load_mode="none"))
    monkeypatch.setattr(Memory, "read", lambda: Memory(1000, 1000))
    assert load_mode(tuned) == "auto"
    assert load_mode(decided) == "none", "the user decides"
    assert load_mode(mapped) is None


def test_experts_that_are_read_or_mapped_give_the_same_bits(tmp_path: Path) -> None:
    path = random_qwen3_moe(tmp_path / "moe.gguf", n_layer=4, n_expert=8)
    rows = []
    for load_mode in ("mmap", "none"):
        with context(path, replace(CONFIG, settings=LlamaSettings(threads=1, load_mode=load_mode))) as made:
            rows.append(written(made))
    assert rows[0] == rows[1]


@pytest.mark.slow
@pytest.mark.reordered
def test_a_draft_on_the_cpu_has_re_ordered_weights_where_that_gains(made: Path) -> None:
    draft = wide_target(made, "q4_k_m")
    assert of_draft(GgufFile.read(draft), UNDECIDED).repack is True
    assert of_draft(GgufFile.read(draft), LlamaSettings(repack=False)).repack is False, "the user decides"
    assert of_draft(GgufFile.read(draft), LlamaSettings(gpu_layers=99)).repack is None
    assert of_draft(GgufFile.read(wide_target(made, "q8_0")), UNDECIDED).repack is None


@pytest.fixture
def k_quant(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tiled_kernels.platform, "machine", lambda: "x86_64")
    return wide_target(made, "q4_k_m")


def kept() -> list[Path]:
    return sorted((data_dir() / "orders").glob("*.json"))


def keep(monkeypatch: pytest.MonkeyPatch, least: int) -> None:
    """As if every trial ended so."""
    ms = {"reordered": dict.fromkeys(SIZES, 1.0), "file": {n: 0.5 if n >= least else 2.0 for n in SIZES}}
    monkeypatch.setattr(default_settings, "orders_ms", lambda _kind, _threads: ms)


def test_the_size_is_the_one_from_which_on_the_file_is_clearly_faster() -> None:
    reordered = dict.fromkeys(SIZES, 1.0)
    assert smallest({"reordered": reordered, "file": dict.fromkeys(SIZES, 0.99)}) > SIZES[-1]
    assert smallest({"reordered": reordered, "file": dict.fromkeys(SIZES, 0.9)}) == SIZES[0]
    assert smallest({"reordered": reordered, "file": {n: 0.9 if n != 16 else 1.0 for n in SIZES}}) == 24


@pytest.mark.reordered
def test_a_trial_is_made_once_and_its_result_is_kept(k_quant: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    n_trials = []
    keep(monkeypatch, 24)
    measure = default_settings.orders_ms
    monkeypatch.setattr(default_settings, "orders_ms", lambda *given: n_trials.append(1) or measure(*given))
    file = GgufFile.read(k_quant)
    assert [file_order_from(file, None), file_order_from(file, None)] == [24, 24]
    assert len(n_trials) == 1
    (path,) = kept()
    kept_facts.write("orders", kept_facts.read(path).of, SIZES[-1] + 1)
    assert file_order_from(file, None) is None
    path.write_text("{")
    assert file_order_from(file, None) == 24, "a damaged result is measured again"
    assert file_order_from(file, 1) == 24
    assert len(n_trials) == 3, "another number of threads is another trial"


@pytest.mark.parametrize("error", [LlamaError("no such kernels"), OSError("the disk is full")])
def test_what_cannot_be_measured_is_unknown_and_not_remembered(
    k_quant: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(default_settings, "orders_ms", fail)
    assert file_order_from(GgufFile.read(k_quant), None) is None
    assert kept() == []


@pytest.mark.reordered
def test_another_machine_or_llama_cpp_is_another_trial(k_quant: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = GgufFile.read(k_quant)
    keep(monkeypatch, 16)
    assert file_order_from(file, None) == 16
    keep(monkeypatch, 24)
    assert file_order_from(file, None) == 16
    with monkeypatch.context() as patched:
        patched.setattr(library, "build", lambda: "another build")
        assert file_order_from(file, None) == 24
    here = devices.this_machine()
    monkeypatch.setattr(devices, "this_machine", lambda: replace(here, cpu=replace(here.cpu, name="another")))
    keep(monkeypatch, 32)
    assert file_order_from(file, None) == 32


@pytest.mark.reordered
def test_a_real_trial_times_both_orders(k_quant: Path) -> None:
    file = GgufFile.read(k_quant)
    kind = next(iter(file.types))
    try:
        ms = default_settings.orders_ms(kind, 1)
    except LlamaError as error:
        pytest.skip(str(error))
    assert {name: sorted(found) for name, found in ms.items()} == dict.fromkeys(("reordered", "file"), sorted(SIZES))
    assert min(min(found.values()) for found in ms.values()) > 0


def test_a_type_without_tiled_kernels_needs_no_trial() -> None:
    assert file_order_from(GgufFile.read(embedded.TARGET), None) is None
    assert not kept()


@pytest.mark.reordered
def test_an_untuned_target_in_ram_follows_the_trial(k_quant: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = RunOptions(k_quant, None, (OFF.plan(),))
    keep(monkeypatch, 24)
    assert defaulted(options).settings.file_order_from == 24
    assert defaulted(replace(options, settings=LlamaSettings(load_mode="mmap"))).settings.file_order_from == 24
    for decided in (LlamaSettings(repack=False), LlamaSettings(load_mode="mlock"), LlamaSettings(load_mode="none")):
        assert defaulted(replace(options, settings=decided)).settings.file_order_from is None, decided
    assert defaulted(replace(options, exact=True)).settings.file_order_from is None


@pytest.mark.reordered
def test_there_must_be_room_for_the_weights_twice(k_quant: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = RunOptions(k_quant, None, (OFF.plan(),))
    keep(monkeypatch, 24)
    for share, least in ((2.5, 24), (1.5, None)):
        room = int(share * plan_load(options).placement.ram.parts["target"])
        monkeypatch.setattr(default_settings, "room_for_weights", lambda _, room=room: room)
        settings = defaulted(options).settings
        assert (settings.repack, settings.file_order_from) == (True, least)


# --- from which size on tiled kernels compute -------------------------------------------------------------------------


def lose_below(monkeypatch: pytest.MonkeyPatch, least: int) -> list[tuple[str, int | None]]:
    """As if tiled kernels lost to others below this size; returns the trials that are made."""
    trials = []

    def ms(kind: str, threads: int | None) -> dict[str, dict[int, float]]:
        trials.append((kind, threads))
        other = {n: 0.5 if n < least else 2.0 for n in TILED_SIZES}
        return {"tiled": dict.fromkeys(TILED_SIZES, 1.0), "other": other}

    monkeypatch.setattr(default_settings, "tiled_ms", ms)
    monkeypatch.setattr(default_settings, "_WORTH_TILED", 0)
    return trials


def test_they_begin_above_the_sizes_at_which_they_lose(k_quant: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = GgufFile.read(k_quant)
    trials = lose_below(monkeypatch, 12)
    assert tiled_from(file, None) == 11, "10 tokens is the last size at which they lost"
    assert tiled_from(file, None) == 11
    assert trials == [("Q4_K", None)], "it is kept"
    lose_below(monkeypatch, 8)
    assert tiled_from(file, 3) is None


def test_nothing_is_tried_for_a_small_model_or_where_the_environment_chooses(
    k_quant: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = GgufFile.read(k_quant)
    trials = lose_below(monkeypatch, 12)
    with monkeypatch.context() as patched:
        patched.setattr(default_settings, "_WORTH_TILED", 10**9)
        assert tiled_from(file, None) is None
    assert tiled_from(GgufFile.read(embedded.TARGET), None) is None, "they compute no Q8_0"
    monkeypatch.setattr(tiled_kernels, "in_use", lambda: "always")
    assert tiled_from(file, None) is None
    assert not trials


def test_an_untuned_target_follows_that_trial_unless_it_is_exact_or_re_ordered(
    k_quant: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = lose_below(monkeypatch, 12)
    options = RunOptions(k_quant, None, (OFF.plan(),), settings=LlamaSettings(repack=False, threads_batch=3))
    assert defaulted(options).settings.tiled_from == 11
    assert trials == [("Q4_K", 3)], "with the threads of such passes"
    assert defaulted(replace(options, exact=True)).settings.tiled_from is None
    assert defaulted(replace(options, settings=LlamaSettings(repack=True))).settings.tiled_from is None


@pytest.mark.slow
def test_a_real_trial_times_both_kernels() -> None:
    ms = default_settings.tiled_ms("Q4_K", 1)
    assert {way: sorted(found) for way, found in ms.items()} == dict.fromkeys(("tiled", "other"), sorted(TILED_SIZES))
    assert min(min(found.values()) for found in ms.values()) > 0
