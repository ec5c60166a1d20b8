"""The shape by the catalog's numbers against that of a real file with these numbers."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from specrun.catalog import embedded
from specrun.catalog.entries import Entry, Shape, catalog
from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.tensor_names import is_expert
from specrun.hardware.expected_shape import expected_shape
from specrun.hardware.fit import CELLS
from specrun.hardware.model_shape import ModelShape
from specrun.llama_settings import UNDECIDED
from tests.models import random_gemma3

N_CELLS = 512
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
        kv=sum(file.kv_bytes_per_token()),
        experts=experts,
        experts_used=used,
    )
    known = {"bytes": file.n_bytes, "vocabulary": file.n_vocab, "tied": file.is_tied, "shape": shape}
    return Entry("x", "a/b", "x.gguf", "Q8_0", **known)


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
    expected = expected_shape(entry_of(file), N_CELLS)
    real = ModelShape.of(file, N_CELLS, UNDECIDED)
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
