"""Sizes from a file's header against what llama.cpp allocates, as its log says."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from specrun.catalog import embedded
from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.recurrent_layers import keeps_snapshots, layers_without_attention, state_bytes
from specrun.hardware.model_shape import ModelShape
from specrun.llama import LlamaModel, library
from specrun.llama.context import ContextConfig, LlamaContext
from specrun.llama_settings import UNDECIDED, LlamaSettings
from tests.hybrids import KINDS, WITH_SNAPSHOTS, random_recurrent
from tests.models import random_gemma3, random_llama, random_qwen3_moe
from tests.other_caches import random_deepseek2, random_gpt_oss

MiB = 2**20
N_CELLS, N_TOKENS, N_ROWS = 4096, 576, 64
ROUNDING = 0.01 * MiB


class Lines(logging.Handler):
    """Collects the log of llama.cpp."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text += record.getMessage() + "\n"

    def bytes_of(self, what: str) -> float:
        """Sum of the logged sizes of all buffers of the kind `what`."""
        return sum(float(size) for size in re.findall(rf"{what} buffer size\s*=\s*([\d.]+) MiB", self.text)) * MiB


@pytest.fixture
def log() -> Iterator[Lines]:
    """The log of llama.cpp."""
    lines, level = Lines(), library.logger.level
    library.logger.setLevel(logging.DEBUG)
    library.logger.addHandler(lines)
    yield lines
    library.logger.removeHandler(lines)
    library.logger.setLevel(level)


def wide_llama(path: Path) -> Path:
    return random_llama(path, n_embd=512, n_layer=3, n_head=8, n_head_kv=4, n_ff=1536, vocab_extra=8000)


@pytest.mark.parametrize(
    "settings",
    [
        LlamaSettings(type_v="bf16"),
        LlamaSettings(type_k="q8_0", type_v="q4_0"),
        LlamaSettings(flash_attn="off"),
    ],
    ids=["bf16", "quantized", "no flash attention"],
)
@pytest.mark.parametrize(
    "make", [None, wide_llama, random_qwen3_moe, random_gpt_oss, lambda path: random_gemma3(path, window=8)]
)
def test_nothing_is_underestimated(tmp_path: Path, log: Lines, settings: LlamaSettings, make) -> None:  # type: ignore[no-untyped-def]
    path = make(tmp_path / "model.gguf") if make else embedded.TARGET
    file = GgufFile.read(path)
    shape = ModelShape.of(file, N_CELLS, settings)
    config = ContextConfig(N_CELLS, n_seq_max=16, n_batch=N_TOKENS, n_outputs=N_ROWS, settings=settings)
    with LlamaModel(path) as model, LlamaContext(model, config):
        pass
    assert sum(shape.kv) == pytest.approx(log.bytes_of("KV"), abs=ROUNDING)
    assert file.n_bytes == pytest.approx(log.bytes_of("model"), abs=ROUNDING)
    compute = shape.activations * N_TOKENS + shape.logits(N_ROWS)
    assert log.bytes_of("compute") <= compute <= 4 * log.bytes_of("compute")
    assert 0 < log.bytes_of("output") <= shape.logits(N_ROWS)


def test_latent_attention_has_one_cache(tmp_path: Path, log: Lines) -> None:
    path = random_deepseek2(tmp_path / "model.gguf")
    shape = ModelShape.of(GgufFile.read(path), N_CELLS, UNDECIDED)
    with LlamaModel(path) as model, LlamaContext(model, ContextConfig(N_CELLS, 16, N_TOKENS, N_ROWS)):
        pass
    assert sum(shape.kv) == pytest.approx(log.bytes_of("KV"), abs=ROUNDING)


@pytest.mark.parametrize(("n_seq_max", "n_snapshots"), [(1, 0), (2, 0), (1, 7)])
@pytest.mark.parametrize("kind", KINDS)
def test_recurrent_states_are_counted(tmp_path: Path, log: Lines, kind: str, n_seq_max: int, n_snapshots: int) -> None:
    path = random_recurrent(tmp_path / "model.gguf", kind)
    file = GgufFile.read(path)
    n_states = n_seq_max * (1 + n_snapshots * keeps_snapshots(file))
    shape = ModelShape.of(file, N_CELLS, UNDECIDED, n_states)
    with LlamaModel(path) as model:
        config = ContextConfig(N_CELLS, n_seq_max, N_TOKENS, N_ROWS, n_snapshots=n_snapshots)
        with LlamaContext(model, config) as context:
            assert (context.n_snapshots > 0) == (n_snapshots > 0 and kind in WITH_SNAPSHOTS)
        assert model.is_recurrent
    assert sum(shape.kv) == pytest.approx(log.bytes_of("KV") + log.bytes_of("RS"), abs=2 * ROUNDING)
    # Layers without attention have states and no cells.
    without = layers_without_attention(file)
    assert without
    assert {shape.kv[layer] for layer in without} == {n_states * max(state_bytes(file))}
