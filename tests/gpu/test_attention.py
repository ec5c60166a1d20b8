"""Flash attention where the device has a kernel for the model's heads, and other attention there where it has none."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest

from specrun.hardware.device import Device
from specrun.llama_settings import ALL_LAYERS, LlamaSettings
from specrun.speculation.method import OFF
from tests.engines import first_difference
from tests.gpu.pairs import SAMPLED, TREE, pair, single, texts
from tests.models import random_llama, wide_heads

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


@pytest.mark.parametrize(("n", "head_dim"), [(1, 64), (5, 128), (ALL_LAYERS, 64)])
def test_it_is_on_for_heads_of_usual_widths(n: int, head_dim: int, made: Path, log: list[str]) -> None:
    with pair(LlamaSettings(gpu_layers=n), draft_layers=0, target=wide_heads(made, head_dim)):
        assert any("Flash Attention enabled" in line for line in log)
        assert not any("Flash Attention not supported" in line for line in log)


def test_without_a_kernel_the_device_computes_attention_otherwise(gpu: Device, tmp_path: Path, log: list[str]) -> None:
    """Random weights accept next to nothing of a draft, so what is compared is mostly rejected trees."""
    if not gpu.name.startswith("Vulkan"):
        pytest.skip("which heads have no kernel is known for Vulkan only: those of no multiple of 8")
    kind = gguf.GGMLQuantizationType.F32
    target = random_llama(tmp_path / "target.gguf", n_embd=144, n_head=4, n_head_kv=2, weight_type=kind, n_ctx=1024)
    draft = random_llama(tmp_path / "draft.gguf", n_layer=1)
    with pair(LlamaSettings(gpu_layers=ALL_LAYERS), target=target, draft=draft) as model:
        assert any("Flash Attention not supported" in line for line in log)
        model.engine.target.padding = single(16)
        plain, written = (texts(model.engine, SAMPLED, plan) for plan in (OFF.plan(), TREE))
        assert first_difference(written, plain) is None
