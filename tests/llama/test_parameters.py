"""Settings become llama.cpp's parameters for loading a model, and passes with a pool of threads have the same bits."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from pathlib import Path

import llama_cpp
import numpy as np
import psutil
import pytest

from specrun.catalog import embedded
from specrun.catalog.gguf_header import is_expert
from specrun.llama import LlamaModel, devices, parameters
from specrun.llama import context as context_module
from specrun.llama.batch import committed_tokens
from specrun.llama.context import ContextConfig, LlamaContext, Logits
from specrun.llama.parameters import ModelParameters, expert_patterns, has_flash, needs_pool
from specrun.llama_settings import ALL_LAYERS, CacheType, LlamaSettings
from tests.models import random_qwen3_moe

EXPERTS = [f"blk.{layer}.ffn_{part}_exps.weight" for layer in (0, 1, 10) for part in ("up", "down", "gate", "gate_up")]
OTHERS = ["blk.0.ffn_up_shexp.weight", "blk.1.ffn_gate_inp.weight", "blk.1.attn_q.weight", "output.weight"]
N_THREADS = 3
TOKENS = list(range(40, 72))


def kept_in_ram(n_cpu_moe: int) -> set[str]:
    """As llama.cpp finds out: the first pattern that is found in the name."""
    return {name for name in EXPERTS + OTHERS if any(re.search(p, name) for p in expert_patterns(n_cpu_moe))}


def test_patterns_match_the_experts_of_the_first_layers() -> None:
    assert kept_in_ram(0) == set()
    assert kept_in_ram(1) == set(EXPERTS[:4])
    assert kept_in_ram(2) == set(EXPERTS[:8])
    assert kept_in_ram(ALL_LAYERS) == kept_in_ram(11) == set(EXPERTS)
    assert all(is_expert(name) for name in EXPERTS)
    assert not any(is_expert(name) for name in OTHERS)


def test_defaults() -> None:
    struct = ModelParameters(LlamaSettings()).struct
    assert (struct.n_gpu_layers, struct.use_extra_bufts) == (0, False)
    assert struct.load_mode == llama_cpp.LLAMA_LOAD_MODE_AUTO
    assert not ctypes.c_void_p.from_address(struct.devices), "a list of no devices"
    assert not struct.tensor_split
    assert not struct.tensor_buft_overrides


def test_re_ordered_weights_are_not_kept_where_a_device_copies_from() -> None:
    for repack in (None, False, True):
        struct = ModelParameters(LlamaSettings(repack=repack)).struct
        assert struct.use_extra_bufts == struct.no_host == bool(repack)


def test_layers_go_to_any_device() -> None:
    struct = ModelParameters(LlamaSettings(gpu_layers=1, split_mode="none")).struct
    assert (struct.n_gpu_layers, struct.split_mode) == (1, llama_cpp.LLAMA_SPLIT_MODE_NONE)
    assert not struct.devices


def test_without_layers_on_a_device_a_model_loads_whichever_device_was_asked_for(random_model: Path) -> None:
    settings = LlamaSettings(gpu_layers=0, split_mode="none", main_gpu=1)
    with LlamaModel(random_model, settings) as model:
        assert not model.is_recurrent


def test_arrays() -> None:
    parameters = ModelParameters(LlamaSettings(tensor_split=(3, 1), n_cpu_moe=2))
    n = llama_cpp.llama_max_devices()
    assert list(parameters.struct.tensor_split[:n]) == [3, 1, *[0] * (n - 2)][:n]
    overrides = parameters._overrides
    assert [override.pattern is None for override in overrides] == [False, False, True]
    assert all(override.buffer_type for override in overrides[:2])


@pytest.mark.parametrize("n_cpu_moe", [0, 1, ALL_LAYERS])
def test_a_mixture_of_experts_loads_with_experts_in_ram(tmp_path: Path, n_cpu_moe: int) -> None:
    path = random_qwen3_moe(tmp_path / "moe.gguf")
    with LlamaModel(path, LlamaSettings(n_cpu_moe=n_cpu_moe, gpu_layers=ALL_LAYERS)) as model:
        assert not model.is_recurrent


@pytest.mark.parametrize(("size", "kind"), [(32, "f16"), (36, "f16"), (128, "f16"), (32, "q8_0"), (128, "q8_0")])
def test_the_cpu_has_flash_attention_for_every_shape(size: int, kind: CacheType) -> None:
    (cpu,) = (handle for device, handle in devices._known(()) if device.kind == "CPU")
    assert has_flash(cpu, 8, 2, size, kind, kind)


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    with LlamaModel(embedded.DRAFT) as model:
        yield model


def context(model: LlamaModel) -> LlamaContext:
    return LlamaContext(model, ContextConfig(64, 1, 32, 32, LlamaSettings(threads=N_THREADS)))


def all_logits(context: LlamaContext) -> Logits:
    """float32[40, n_vocab]: a large pass, then small ones with all threads and with one."""
    rows = [context.decode(committed_tokens(TOKENS, 0, 1, len(TOKENS))).copy()]
    for n in range(4):
        rows.append(context.decode(committed_tokens([n], 32 + n, 1, 1)).copy())
    context.set_threads(1)
    for n in range(4, 8):
        rows.append(context.decode(committed_tokens([n], 32 + n, 1, 1)).copy())
    return np.concatenate(rows)


def test_the_bits_are_the_same(model: LlamaModel, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []

    class Counted(parameters.ThreadPool):
        def __init__(self, handle: object, n_threads: int) -> None:
            given.append(n_threads)
            super().__init__(handle, n_threads)

    monkeypatch.setattr(context_module, "ThreadPool", Counted)
    monkeypatch.setattr(context_module, "needs_pool", lambda: False)
    with context(model) as plain:
        expected = all_logits(plain)
    assert given == []
    monkeypatch.setattr(context_module, "needs_pool", lambda: True)
    with context(model) as pooled, context(model) as other:
        np.testing.assert_array_equal(all_logits(pooled), expected)
        np.testing.assert_array_equal(all_logits(other), expected)
        pooled.close()
        pooled.close()
    assert given == [N_THREADS, N_THREADS]


@pytest.mark.parametrize(("info", "needed"), [("AVX2 = 1 | OPENMP = 1 | ", False), ("AVX2 = 1 | ", True)])
def test_openmp_keeps_its_threads_by_itself(info: str, needed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "system_info", lambda: f"CUDA : X = 1 | CPU : {info}")
    needs_pool.cache_clear()
    assert needs_pool() == needed
    needs_pool.cache_clear()


def test_the_threads_end_with_the_context(model: LlamaModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where this build has OpenMP, a pool has none from the beginning."""
    n_kept = N_THREADS - 1 if needs_pool() else 0
    monkeypatch.setattr(context_module, "needs_pool", lambda: True)
    n_before = psutil.Process().num_threads()
    with context(model):
        assert psutil.Process().num_threads() == n_before + n_kept
    assert psutil.Process().num_threads() == n_before
