"""Mixtures of experts whose attention is on a device and whose experts are there, in RAM, or on both sides."""

from __future__ import annotations

from pathlib import Path

import pytest

from specrun.llama_settings import ALL_LAYERS, LlamaSettings
from specrun.sampling import SamplingParameters
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF
from tests.engines import first_difference
from tests.gpu.pairs import TREE, pair, single, texts
from tests.models import random_llama, random_qwen3_moe

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

N_LAYERS = 3


@pytest.mark.parametrize("n_cpu_moe", [0, 1, ALL_LAYERS])
def test_experts_in_ram(n_cpu_moe: int, tmp_path: Path) -> None:
    """Random weights accept next to nothing of a draft, so what is compared is mostly rejected trees.

    Experts are multiplied for all tokens of a pass that chose them, whose number no padding fixes, so bits may differ.
    """
    target = random_qwen3_moe(tmp_path / "mixture.gguf", n_layer=N_LAYERS)
    draft = random_llama(tmp_path / "draft.gguf", n_layer=1)
    settings = LlamaSettings(gpu_layers=ALL_LAYERS, n_cpu_moe=n_cpu_moe)
    with pair(settings, target=target, draft=draft, plan=SPECEXEC.plan(16, 8)) as model:
        assert model.placement
        assert model.placement.n_cpu_moe == (N_LAYERS if n_cpu_moe == ALL_LAYERS else n_cpu_moe)
        experts = [site.parts.get("experts", 0) for site in (*model.placement.gpus, model.placement.ram)]
        assert [bool(n_bytes) for n_bytes in experts] == [n_cpu_moe != ALL_LAYERS, n_cpu_moe != 0]
        model.engine.target.padding = single(16)
        greedy = SamplingParameters(temperature=0.0)
        plain, written = (texts(model.engine, greedy, plan) for plan in (OFF.plan(), TREE))
        assert written.tokens == plain.tokens
        assert first_difference(texts(model.engine, greedy, OFF.plan()), plain) is None
