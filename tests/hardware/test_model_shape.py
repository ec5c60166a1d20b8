"""Sizes from a file's header against what llama.cpp allocates, as its log says."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from specrun.catalog import embedded
from specrun.catalog.gguf_file import GgufFile
from specrun.hardware.model_shape import ModelShape
from specrun.llama import LlamaModel, library
from specrun.llama.context import ContextConfig, LlamaContext
from specrun.llama_settings import LlamaSettings
from tests.models import random_gemma3, random_llama, random_qwen3_moe

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
@pytest.mark.parametrize("make", [None, wide_llama, random_qwen3_moe, lambda path: random_gemma3(path, window=8)])
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
