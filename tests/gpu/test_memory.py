"""The memory that placement plans on a device against what llama.cpp takes there, as its log says: within 10 %."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from specrun.hardware.machine import Device
from specrun.llama.facts.tiny_model import write_zeros
from specrun.llama_settings import ALL_LAYERS, LlamaSettings
from specrun.loading.model import Model
from specrun.loading.run_options import RunOptions
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

SCRIPT = Path(__file__).parents[2] / "scripts" / "make_mixture.py"
MiB = 2**20
N_LAYERS = 8
SHARE = 0.10  # by which the plan may differ


@pytest.fixture(scope="module")
def dense(made: Path) -> Path:
    """Zeros in the shape of a model, 117 MB in Q8_0, large enough that little things do not count."""
    embd, ff, vocab, size, kv_heads = 1024, 2816, 8000, 64, 4
    shapes = {"token_embd.weight": (embd, vocab), "output.weight": (embd, vocab)}
    for i in range(N_LAYERS):
        for name, shape in {
            "attn_q": (embd, embd), "attn_k": (embd, kv_heads * size), "attn_v": (embd, kv_heads * size),
            "attn_output": (embd, embd), "ffn_gate": (embd, ff), "ffn_up": (embd, ff), "ffn_down": (ff, embd),
        }.items():  # fmt: skip
            shapes[f"blk.{i}.{name}.weight"] = shape
    metadata = {
        "vocab_size": vocab, "context_length": 4096, "embedding_length": embd, "block_count": N_LAYERS,
        "feed_forward_length": ff, "attention.head_count": embd // size, "attention.head_count_kv": kv_heads,
        "attention.key_length": size, "attention.value_length": size, "rope.dimension_count": size,
    }  # fmt: skip
    return write_zeros(made / "dense.gguf", metadata, shapes, dict.fromkeys(shapes, "Q8_0"))


@pytest.fixture(scope="module")
def mixture(made: Path) -> Path:
    """A mixture of 4 layers with 16 experts, of which a token uses 4."""
    path = made / "mixture.gguf"
    shape = ["--layers", "4", "--experts", "16", "--used", "4", "--embd", "1024", "--ff", "512"]
    subprocess.run([sys.executable, SCRIPT, path, *shape], check=True, capture_output=True)
    return path


def assert_as_planned(target: Path, settings: LlamaSettings, ctx_size: int, gpu: Device, log: list[str]) -> None:
    options = RunOptions(target, None, (OFF.plan(),), SPECEXEC.plan(64, 8), ctx_size, settings)
    with Model(options) as model:
        assert model.placement
        planned = model.placement.gpus[0].used_bytes
    text = "\n".join(line for line in log if not line.startswith("~"))
    taken = sum(float(n) for n in re.findall(rf"{gpu.name} \w+ buffer size\s*=\s*([\d.]+) MiB", text)) * MiB
    assert taken
    assert planned == pytest.approx(taken, rel=SHARE)


@pytest.mark.parametrize("ctx_size", [512, 4096])
@pytest.mark.parametrize("n", [1, 4, 8, ALL_LAYERS])
def test_a_dense_model(n: int, ctx_size: int, dense: Path, gpu: Device, log: list[str]) -> None:
    assert_as_planned(dense, LlamaSettings(gpu_layers=n, threads=1), ctx_size, gpu, log)


def test_without_flash_attention(dense: Path, gpu: Device, log: list[str]) -> None:
    settings = LlamaSettings(gpu_layers=ALL_LAYERS, threads=1, flash_attn="off")
    assert_as_planned(dense, settings, 1024, gpu, log)


def test_larger_passes_over_prompts(dense: Path, gpu: Device, log: list[str]) -> None:
    settings = LlamaSettings(gpu_layers=ALL_LAYERS, threads=1, ubatch_size=2048)
    assert_as_planned(dense, settings, 4096, gpu, log)


@pytest.mark.parametrize(("n", "n_cpu_moe"), [(ALL_LAYERS, 0), (ALL_LAYERS, ALL_LAYERS), (3, 0)])
def test_a_mixture(n: int, n_cpu_moe: int, mixture: Path, gpu: Device, log: list[str]) -> None:
    assert_as_planned(mixture, LlamaSettings(gpu_layers=n, n_cpu_moe=n_cpu_moe, threads=1), 1024, gpu, log)
