"""Rows of a matrix in a file are the numbers that the gguf package decodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from specrun.catalog.gguf_file import GgufFile
from specrun.errors import ModelFileError
from specrun.llama.heads.dflash import matrix_in, whole_numbers_in
from tests.models import random_llama, split, write_model

EMBEDDING = "token_embd.weight"


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0"])
def test_rows_in_any_order(tmp_path: Path, kind: str) -> None:
    file = random_llama(tmp_path / "model.gguf", weight_type=gguf.GGMLQuantizationType[kind])
    tensor = next(tensor for tensor in gguf.GGUFReader(file).tensors if tensor.name == EMBEDDING)
    whole = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    matrix = matrix_in(GgufFile.read(file), EMBEDDING)
    assert matrix
    assert (matrix([7, 1900, 7]) == whole[[7, 1900, 7]]).all()
    np.testing.assert_array_equal(matrix(slice(None)), whole)
    assert matrix_in(GgufFile.read(file), "other.weight") is None


def test_a_matrix_in_a_later_file_of_a_split_model(tmp_path: Path) -> None:
    file = random_llama(tmp_path / "model.gguf")
    name = GgufFile.read(file).tensors[-1].name
    parts = GgufFile.read(split(tmp_path / "parts.gguf", file, 3))
    whole, part = matrix_in(GgufFile.read(file), name), matrix_in(parts, name)
    assert whole
    assert part
    assert (part(slice(None)) == whole(slice(None))).all()


def test_whole_numbers(tmp_path: Path) -> None:
    numbers = np.array([5, 1 << 40, 3], np.int64)
    path = write_model(tmp_path / "head.gguf", "eagle3", {}, {"d2t": numbers}, gguf.GGMLQuantizationType.F32)
    file = GgufFile.read(path)
    found = whole_numbers_in(file, "d2t")
    assert found is not None
    assert found.tolist() == numbers.tolist()
    assert whole_numbers_in(file, "other") is None


def test_a_type_that_cannot_be_decoded_is_an_error(tmp_path: Path) -> None:
    file = GgufFile.read(random_llama(tmp_path / "model.gguf"))
    file.by_name[EMBEDDING] = replace(file.by_name[EMBEDDING], type="Q9_9")
    with pytest.raises(ModelFileError, match=r"token_embd.weight in .*model.gguf is in Q9_9, .* quantize it to Q8_0"):
        matrix_in(file, EMBEDDING)
