"""Settings become llama.cpp's parameters for loading a model."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import llama_cpp
import pytest

from specrun.catalog.gguf_header import is_expert
from specrun.llama import LlamaModel
from specrun.llama.parameters import ModelParameters, expert_patterns
from specrun.llama_settings import ALL_LAYERS, LlamaSettings
from tests.models import random_qwen3_moe

EXPERTS = [f"blk.{layer}.ffn_{part}_exps.weight" for layer in (0, 1, 10) for part in ("up", "down", "gate", "gate_up")]
OTHERS = ["blk.0.ffn_up_shexp.weight", "blk.1.ffn_gate_inp.weight", "blk.1.attn_q.weight", "output.weight"]


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
