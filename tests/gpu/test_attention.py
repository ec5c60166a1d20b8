"""Flash attention where the device has a kernel for the model's heads, and other attention there where it has none."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest

from specrun.hardware.machine import Device
from specrun.llama_settings import ALL_LAYERS, LlamaSettings
from specrun.speculation.method import OFF
from tests.engines import first_difference
from tests.gpu.pairs import SAMPLED, TREE, pair, single, texts
from tests.models import random_llama, wide_heads

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


@pytest.mark.parametrize("head_dim", [64, 128])
def test_it_is_on_for_heads_of_usual_widths(head_dim: int, made: Path) -> None:
    with pair(LlamaSettings(gpu_layers=5), draft_layers=0, target=wide_heads(made, head_dim)) as model:
        assert model.engine.target.context.config.settings.flash_attn is None


def test_without_a_kernel_the_device_computes_attention_otherwise(gpu: Device, tmp_path: Path, log: list[str]) -> None:
    """Random weights accept next to nothing of a draft, so what is compared is mostly rejected trees."""
    if not gpu.name.startswith("Vulkan"):
        pytest.skip("which heads have no kernel is known for Vulkan only: those of no multiple of 8")
    kind = gguf.GGMLQuantizationType.F32
    target = random_llama(tmp_path / "target.gguf", n_embd=144, n_head=4, n_head_kv=2, weight_type=kind, n_ctx=1024)
    draft = random_llama(tmp_path / "draft.gguf", n_layer=1)
    with pair(LlamaSettings(gpu_layers=ALL_LAYERS), target=target, draft=draft) as model:
        assert model.engine.target.context.config.settings.flash_attn == "off"
        assert model.placement
        model.engine.target.padding = single(16)
        plain, written = (texts(model.engine, SAMPLED, plan) for plan in (OFF.plan(), TREE))
        assert first_difference(written, plain) is None
    # llama.cpp asks in its own way whether all layers could have it, and agrees that they cannot.
    with pair(LlamaSettings(gpu_layers=ALL_LAYERS, flash_attn="auto"), 0, target=target, draft=draft):
        assert any("Flash Attention not supported" in line for line in log)
