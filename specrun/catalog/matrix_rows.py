"""Rows of a matrix in a GGUF file as numbers. The file is mapped, and only the rows in use are decoded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.gguf_header import TensorInfo
from specrun.errors import ModelFileError

Floats = NDArray[np.float32]


class MatrixRows:
    """A matrix of the file at `path`. Raises ModelFileError if its type cannot be decoded."""

    def __init__(self, path: Path, tensor: TensorInfo) -> None:
        import gguf  # takes a tenth of a second

        self.n_columns, self.n_rows = tensor.shape
        self._dequantize = gguf.quants.dequantize
        self._data = np.memmap(path, np.uint8, "r", tensor.offset, (self.n_rows, tensor.n_bytes // self.n_rows))
        try:
            self._type = gguf.GGMLQuantizationType[tensor.type.upper()]
            self.of([0])
        except (KeyError, NotImplementedError) as error:
            what = f"{tensor.name} in {path} is in {tensor.type}, which cannot be decoded"
            raise ModelFileError(f"{what}; quantize it to Q8_0") from error

    def of(self, rows: Sequence[int] | slice) -> Floats:
        """float32[len(rows), n_columns]: these rows, in this order."""
        values: Floats = self._dequantize(np.ascontiguousarray(self._data[rows]), self._type)
        return values


def matrix_in(file: GgufFile, name: str) -> MatrixRows | None:
    """The matrix with this name; None if the file has none. Raises ModelFileError as `MatrixRows`."""
    found = file.by_name.get(name)
    return MatrixRows(file.shards[found.file], found) if found else None


def whole_numbers_in(file: GgufFile, name: str) -> NDArray[np.int64] | None:
    """int64[n]: the list of whole numbers with this name; None if the file has none."""
    found = file.by_name.get(name)
    return np.memmap(file.shards[found.file], "<i8", "r", found.offset, found.shape) if found else None
