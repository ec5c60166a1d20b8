"""Trained heads whose target is on a device: wholly or in part, with the head there or in RAM."""

from __future__ import annotations

from pathlib import Path

import pytest

from specrun.llama import AnyHead
from specrun.llama_settings import ALL_LAYERS, LlamaSettings
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.specexec import SPECEXEC
from tests.dflash_heads import dflash2_pair, random_dspark
from tests.eagle_heads import agreeing_pair
from tests.gemma4 import random_assistant, random_gemma4
from tests.gpu.pairs import assert_exact, pair, single
from tests.models import random_llama
from tests.mtp_targets import head_alone, quiet, random_mtp_step35, trunk_alone

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

PLANS = (SPECEXEC.plan(16, 6), CHAIN.plan(depth=3))


def made_pair(kind: str, folder: Path) -> tuple[Path, Path]:
    """A target and its head. Only "mtp beside" and DFlash use the target's output matrix, wherever that lies."""
    if kind == "eagle3":
        return agreeing_pair(folder)
    if kind == "dflash":
        target = quiet(folder / "target.gguf", random_llama(folder / "plain.gguf", n_layer=4))
        return target, random_dspark(folder / "head.gguf", target)
    if kind == "dflash2":
        return dflash2_pair(folder)
    if kind == "assistant":
        target = random_gemma4(folder / "target.gguf")
        return target, random_assistant(folder / "head.gguf", target)
    whole = random_mtp_step35(folder / "whole.gguf")
    if kind == "mtp":
        return whole, whole
    return trunk_alone(folder / "trunk.gguf", whole), head_alone(folder / "head.gguf", whole)


@pytest.mark.parametrize("in_vram", [1, ALL_LAYERS], ids=["the output", "all layers"])
@pytest.mark.parametrize("head_layers", [0, ALL_LAYERS], ids=["head in RAM", "head in VRAM"])
@pytest.mark.parametrize("kind", ["eagle3", "mtp", "mtp beside", "dflash", "dflash2", "assistant"])
def test_a_head_drafts_and_the_text_is_the_targets_own(
    tmp_path: Path, kind: str, head_layers: int, in_vram: int
) -> None:
    target, head = made_pair(kind, tmp_path)
    settings = LlamaSettings(gpu_layers=in_vram)
    with pair(settings, head_layers, target=target, draft=head) as model:
        assert isinstance(model.engine.draft, AnyHead)
        model.engine.target.padding = single(16)
        assert_exact(model.engine, PLANS)
