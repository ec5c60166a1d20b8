"""Flash attention is off with layers on a GPU only where a GPU says that it has no kernel for the model's heads."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf import GGMLQuantizationType

from specrun.catalog import embedded
from specrun.catalog.gguf_file import GgufFile
from specrun.engine.gpu_attention import attention_on_gpus
from specrun.llama import flash_kernel
from specrun.llama_settings import LlamaSettings
from tests.models import random_llama


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
def test_what_the_user_decided_stays(
    settings: LlamaSettings, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def no_kernel(*heads: object) -> bool:
        asked.append(heads[:3])
        return False

    monkeypatch.setattr(flash_kernel, "gpus_have_it", no_kernel)
    assert attention_on_gpus(GgufFile.read(embedded.TARGET), settings).flash_attn == expected
    assert asked == ([(8, 2, 32)] if expected == "off" else [])


def test_with_a_kernel_it_stays_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash_kernel, "gpus_have_it", lambda *_: True)
    assert attention_on_gpus(GgufFile.read(embedded.TARGET), LlamaSettings()) == LlamaSettings()


def test_of_heads_that_a_type_of_k_does_not_divide_nothing_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = GgufFile.read(random_llama(tmp_path / "a.gguf", n_embd=96, n_head=2, weight_type=GGMLQuantizationType.F32))
    monkeypatch.delattr(flash_kernel, "gpus_have_it")
    assert attention_on_gpus(file, LlamaSettings(type_k="q8_0")).flash_attn is None
