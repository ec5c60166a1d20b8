"""Sizes from a file's header or the catalog's numbers, against what llama.cpp allocates and a real file has."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from specrun.catalog import embedded
from specrun.catalog.entries import Entry, Shape, catalog
from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.gguf_header import is_expert
from specrun.catalog.layer_states import keeps_snapshots, kv_bytes_per_token, layers_without_attention, state_bytes
from specrun.hardware.fit import CELLS
from specrun.hardware.model_shape import ModelShape, expected_shape
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


@pytest.mark.slow
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


N_EXPECTED_CELLS = 512
SCRIPT = Path(__file__).parents[2] / "scripts" / "make_mixture.py"


def entry_of(file: GgufFile) -> Entry:
    """What the catalog would say of a file in Q8_0."""
    used, experts = file.n_experts_used, file.n_experts
    in_experts = sum(tensor.n_parameters for tensor in file.tensors if is_expert(tensor.name))
    shape = Shape(
        parameters=file.n_parameters,
        active=file.n_parameters - in_experts * (1 - used / experts) if experts else None,
        layers=file.n_layers,
        width=file.n_embd,
        kv=sum(kv_bytes_per_token(file)),
        experts=experts,
        experts_used=used,
    )
    known = {"bytes": file.n_bytes, "vocabulary": file.n_vocab, "tied": file.is_tied, "shape": shape}
    return Entry("x", "a/b", "x.gguf", "Q8_0", **known)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dense", "sliding windows", "mixture"])
def test_it_is_about_that_of_the_file(tmp_path: Path, kind: str) -> None:
    path = embedded.TARGET
    if kind == "sliding windows":
        path = random_gemma3(tmp_path / "m.gguf", window=64)
    elif kind == "mixture":
        path = tmp_path / "m.gguf"
        shape = ["--layers", "3", "--experts", "16", "--used", "3", "--embd", "256", "--ff", "128"]
        subprocess.run([sys.executable, str(SCRIPT), str(path), *shape], check=True, capture_output=True, timeout=60)
    file = GgufFile.read(path)
    expected = expected_shape(entry_of(file), N_EXPECTED_CELLS)
    real = ModelShape.of(file, N_EXPECTED_CELLS, UNDECIDED)
    assert expected
    assert len(expected.layers) == len(real.layers)
    assert sum(expected.kv) == sum(real.kv)
    assert sum(expected.experts) == pytest.approx(sum(real.experts), rel=0.05)
    assert sum(expected.layers) == pytest.approx(sum(real.layers), rel=0.1)
    assert expected.embedding == pytest.approx(real.embedding, rel=0.05)
    assert expected.output == pytest.approx(real.output, rel=0.05)
    assert (expected.is_tied, expected.n_vocab, expected.is_moe) == (real.is_tied, real.n_vocab, real.is_moe)


def test_every_model_of_the_catalog_has_one() -> None:
    for alias, entry in catalog().items():
        shape = expected_shape(entry, CELLS)
        assert shape, alias
        assert shape.is_moe == (entry.kind == "moe"), alias
        weights = sum(shape.layers) + sum(shape.experts) + shape.embedding + (0 if shape.is_tied else shape.output)
        assert weights == pytest.approx(entry.expected_bytes, rel=0.01), alias


def test_what_says_too_little_has_none() -> None:
    entry = catalog()["qwen-14b"]
    assert expected_shape(replace(entry, shape=None), CELLS) is None
    assert expected_shape(replace(entry, vocabulary=None), CELLS) is None
    assert expected_shape(replace(entry, bytes=None, quantization="unknown"), CELLS) is None
