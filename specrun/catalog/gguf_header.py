"""The header of a GGUF file: metadata and the list of tensors, without the weights.

gguf's own reader makes a numpy view of every string, which takes 11 seconds with a vocabulary of 150,000 tokens. This
one skips arrays and decodes them on access. The layout is specified in ggml's docs/gguf.md.
"""

from __future__ import annotations

import errno
import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from specrun.errors import ModelFileError, OutOfMemoryError

Buffer = bytes | mmap.mmap

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)  # version 1 had 32-bit lengths, and llama.cpp no longer reads it either
_MAX_DIMENSIONS = 4  # GGML_MAX_DIMS
_DEFAULT_ALIGNMENT = 32  # bytes; of the weights, if the file has no general.alignment

# enum gguf_metadata_value_type; the scalars with their format characters of `struct`.
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

_LENGTH = struct.Struct("<Q")
_TYPE = struct.Struct("<I")
_TYPE_AND_LENGTH = struct.Struct("<IQ")
_TYPE_AND_OFFSET = struct.Struct("<IQ")


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of a file."""

    name: str
    shape: tuple[int, ...]  # in ggml's order, the contiguous dimension first
    type: str  # ggml's name of the element type, e.g. `Q4_K`
    n_bytes: int
    offset: int  # of its weights in the file, in bytes

    @property
    def n_parameters(self) -> int:
        """Number of weights."""
        return prod(self.shape)


class Metadata(Mapping[str, Any]):
    """A file's metadata by key. Values are decoded on access; `length` counts an array without decoding it."""

    def __init__(self, data: bytes, offsets: Mapping[str, tuple[int, int]]) -> None:
        self._data = data
        self._offsets = offsets  # key -> (type, offset of the value in `data`)

    def __getitem__(self, key: str) -> Any:
        kind, offset = self._offsets[key]
        return _decode(self._data, kind, offset)[0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._offsets)

    def __len__(self) -> int:
        return len(self._offsets)

    def length(self, key: str) -> int:
        """Number of elements of the array `key`; 0 if it is missing or not an array."""
        kind, offset = self._offsets.get(key, (-1, 0))
        return int(_TYPE_AND_LENGTH.unpack_from(self._data, offset)[1]) if kind == _ARRAY else 0


@dataclass(frozen=True)
class GgufHeader:
    """Everything in a file before the weights."""

    metadata: Metadata
    tensors: tuple[TensorInfo, ...]
    n_bytes: int  # offset of the weights
    n_file_bytes: int  # size of the complete file


def read_header(path: Path) -> GgufHeader:
    """The header of the file at `path`. Raises ModelFileError if it cannot be read, is not GGUF, or is cut off, and
    OutOfMemoryError where there is no room to map it.
    """
    try:
        with path.open("rb") as file:
            if not file.seek(0, 2):
                raise ModelFileError(f"{path} is empty; download it again")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                header = parse_header(data, str(path))
                size = len(data)
    except FileNotFoundError as error:
        raise ModelFileError(f"{path}: no such file; give the path of a GGUF model") from error
    except IsADirectoryError as error:
        raise ModelFileError(f"{path} is a directory; give the .gguf file inside it") from error
    except OSError as error:
        if error.errno == errno.ENOMEM:
            raise OutOfMemoryError(
                f"{path} cannot be mapped: there is not enough memory; close other programs"
            ) from error
        raise ModelFileError(f"{path} cannot be read: {error.strerror or error}") from error
    if size < header.n_file_bytes:
        raise ModelFileError(f"{path} is incomplete ({size} of {header.n_file_bytes} bytes); download it again")
    return header


def parse_header(data: Buffer, name: str) -> GgufHeader:
    """Parse the header at the beginning of `data`, which may be cut off anywhere behind it.

    `name` names the file in messages. Raises ModelFileError if `data` is not GGUF or ends inside the header.
    """
    if data[:4] != _MAGIC:
        raise ModelFileError(f"{name} is not a GGUF file; convert the model to GGUF or download a .gguf file of it")
    try:
        return _parse(data, name)
    except (struct.error, EOFError, OverflowError) as error:
        raise ModelFileError(f"{name} is incomplete, it ends inside its header; download it again") from error


def _parse(data: Buffer, name: str) -> GgufHeader:
    version, n_tensors, n_keys = struct.unpack_from("<IQQ", data, 4)
    if version not in _VERSIONS:
        order = "big-endian, " if version & 0xFFFF == 0 else ""
        raise ModelFileError(f"{name} is GGUF {order}version {version}; convert the model again, to version 3")
    offset = 24
    offsets = {}
    for _ in range(n_keys):
        key, offset = _string(data, offset)
        (kind,) = _TYPE.unpack_from(data, offset)
        offsets[key] = (kind, offset + 4)
        offset = _skip(data, kind, offset + 4, name)
    described = []
    for _ in range(n_tensors):
        tensor, offset = _tensor(data, offset, name)
        described.append(tensor)
    if offset > len(data):
        raise EOFError
    metadata = Metadata(bytes(data[:offset]), offsets)
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0:
        raise ModelFileError(f"{name} has an impossible alignment ({alignment!r}); download it again")
    start_of_weights = -(-offset // alignment) * alignment
    tensors = tuple(replace(tensor, offset=start_of_weights + tensor.offset) for tensor in described)
    end = max((tensor.offset + tensor.n_bytes for tensor in tensors), default=offset)
    return GgufHeader(metadata, tensors, start_of_weights, end)


def _tensor(data: Buffer, offset: int, name: str) -> tuple[TensorInfo, int]:
    """The tensor described at `offset`, with its offset behind the header, and the end of the description."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    tensor, offset = _string(data, offset)
    (n_dimensions,) = _TYPE.unpack_from(data, offset)
    if n_dimensions > _MAX_DIMENSIONS:
        raise ModelFileError(f"{name} has a tensor with {n_dimensions} dimensions ({tensor}); download it again")
    shape = struct.unpack_from(f"<{n_dimensions}Q", data, offset + 4)
    offset += 4 + 8 * n_dimensions
    kind, start = _TYPE_AND_OFFSET.unpack_from(data, offset)
    try:
        ggml_type = GGMLQuantizationType(kind)
        block, block_bytes = GGML_QUANT_SIZES[ggml_type]
    except (ValueError, KeyError) as error:
        raise ModelFileError(f"{name} has weights of an unknown type ({tensor}: {kind}); upgrade gguf") from error
    info = TensorInfo(tensor, shape, ggml_type.name, prod(shape) // block * block_bytes, start)
    return info, offset + _TYPE_AND_OFFSET.size


def _string(data: Buffer, offset: int) -> tuple[str, int]:
    (length,) = _LENGTH.unpack_from(data, offset)
    begin = offset + 8
    if begin + length > len(data):
        raise EOFError
    return data[begin : begin + length].decode("utf-8", errors="replace"), begin + length


def _skip(data: Buffer, kind: int, offset: int, name: str) -> int:
    """The offset at which the value of type `kind` at `offset` ends."""
    if kind in _SCALARS:
        return offset + struct.calcsize("<" + _SCALARS[kind])
    if kind == _STRING:
        return offset + 8 + int(_LENGTH.unpack_from(data, offset)[0])
    if kind != _ARRAY:
        raise ModelFileError(f"{name} has metadata of an unknown type ({kind}); upgrade specrun or download it again")
    item, length = _TYPE_AND_LENGTH.unpack_from(data, offset)
    offset += _TYPE_AND_LENGTH.size
    if item in _SCALARS:
        return offset + int(length) * struct.calcsize("<" + _SCALARS[item])
    unpack = _LENGTH.unpack_from
    for _ in range(length):
        offset = offset + 8 + unpack(data, offset)[0] if item == _STRING else _skip(data, item, offset, name)
    return offset


def _decode(data: Buffer, kind: int, offset: int) -> tuple[Any, int]:
    """The value of type `kind` at `offset`, and the offset at which it ends. `_skip` has checked that it is whole."""
    if kind == _STRING:
        return _string(data, offset)
    if kind == _ARRAY:
        item, length = _TYPE_AND_LENGTH.unpack_from(data, offset)
        offset += _TYPE_AND_LENGTH.size
        if item in _SCALARS:
            items = struct.Struct(f"<{length}{_SCALARS[item]}")
            return list(items.unpack_from(data, offset)), offset + items.size
        values = []
        for _ in range(length):
            value, offset = _decode(data, item, offset)
            values.append(value)
        return values, offset
    scalar = struct.Struct("<" + _SCALARS[kind])
    return scalar.unpack_from(data, offset)[0], offset + scalar.size
