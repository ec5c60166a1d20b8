"""The header of a GGUF file: metadata and the list of tensors, without the weights.

gguf's own reader makes a numpy view of every string, which takes 11 seconds with a vocabulary of 150,000 tokens. This
reader skips arrays and decodes them on access. The layout is specified in ggml's docs/gguf.md.

A file may come from anyone, so contradictions are refused here: counts for which the file has no room, names that occur
twice, tensors that overlap or lie outside of the file. A count in the file never decides how much memory is taken.
"""

from __future__ import annotations

import errno
import mmap
import re
import stat
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from specrun.catalog import ggml_types
from specrun.catalog.not_models import LOOKED_AT, about_data, about_folder
from specrun.errors import ModelFileError, OutOfMemoryError

Buffer = bytes | mmap.mmap

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)  # version 1 had 32-bit lengths, and llama.cpp no longer reads it either
# Types of intermediate results and of tables. llama.cpp has no kernel for products with them, but would call it.
_NO_WEIGHTS = frozenset({"F64", "I8", "I16", "I32", "I64", "Q8_1", "Q8_K"})
_TABLE = re.compile(r"[a-z]2[a-z]")  # from tokens to experts (`tid2eid`), or to other tokens (`d2t`)
_MAX_DIMENSIONS = 4  # GGML_MAX_DIMS
_DEFAULT_ALIGNMENT = 32  # bytes, of the weights where the file has no general.alignment
_MOST_HEADER_BYTES = 2**28  # a vocabulary of 262,144 tokens with its merges takes 16 MB
_MOST_KEYS, _MOST_TENSORS = 2**16, 2**18  # real files have up to a hundred keys and some ten thousand tensors
_MOST_STRINGS = 2**24  # in an array
_LONGEST_KEY = 65535  # bytes
_LONGEST_TENSOR_NAME = 63  # bytes; GGML_MAX_NAME - 1
_LARGEST = 2**63 - 1  # of dimensions, elements and bytes: what ggml's int64_t holds

EMBEDDING = "token_embd.weight"
OUTPUT = "output.weight"
INPUTS = (EMBEDDING, "per_layer_token_embd.weight", "position_embd.weight", "token_types.weight")
_LAYER = re.compile(r"blk\.(\d+)\.")
# LLM_FFN_EXPS_REGEX in llama.cpp's common.h: the routed experts, which --n-cpu-moe keeps in RAM. Shared experts, which
# every token uses, are named `_shexp`.
EXPERT_PATTERN = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"

# enum gguf_metadata_value_type; the scalars with their format characters of `struct`.
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

_LENGTH = struct.Struct("<Q")
_TYPE = struct.Struct("<I")
_TYPE_AND_NUMBER = struct.Struct("<IQ")  # the number is an array's length or a tensor's offset


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of a file."""

    name: str
    shape: tuple[int, ...]  # in ggml's order, the contiguous dimension first
    type: str  # ggml's name of the element type, e.g. `Q4_K`
    n_bytes: int
    offset: int  # of its weights in the file, in bytes
    file: int = 0  # index of the file in `GgufFile.shards`

    @property
    def n_parameters(self) -> int:
        """Number of weights."""
        return prod(self.shape)


def layer_of(tensor: str) -> int | None:
    """Index of the layer that a tensor belongs to; None if it belongs to no layer."""
    match = _LAYER.match(tensor)
    return int(match[1]) if match else None


def is_expert(tensor: str) -> bool:
    """Whether a tensor holds routed experts, e.g. `blk.0.ffn_up_exps.weight`."""
    return bool(re.search(EXPERT_PATTERN, tensor))


class Metadata(Mapping[str, Any]):
    """A file's metadata by key. Values are decoded on access; `n_strings` counts an array without decoding it."""

    def __init__(self, data: bytes, offsets: Mapping[str, tuple[int, int]]) -> None:
        self._data = data
        self._offsets = offsets  # key -> (type, offset of the value in `data`)

    def __getitem__(self, key: str) -> Any:
        kind, offset = self._offsets[key]
        return _decode(self._data, kind, offset)

    def __contains__(self, key: object) -> bool:
        return key in self._offsets  # Mapping's own would decode the value

    def __iter__(self) -> Iterator[str]:
        return iter(self._offsets)

    def __len__(self) -> int:
        return len(self._offsets)

    def n_strings(self, key: str) -> int | None:
        """Number of strings in the array `key`, which is not decoded; None if it is missing or no array of strings."""
        kind, offset = self._offsets.get(key, (-1, 0))
        item, length = _TYPE_AND_NUMBER.unpack_from(self._data, offset) if kind == _ARRAY else (-1, 0)
        return int(length) if item == _STRING else None

    def has_string(self, text: str) -> bool:
        """Whether `text` is a string of the file, or an item of an array of strings; nothing is decoded."""
        data = text.encode()
        return _LENGTH.pack(len(data)) + data in self._data


@dataclass(frozen=True)
class GgufHeader:
    """Everything in a file before the weights."""

    metadata: Metadata
    tensors: tuple[TensorInfo, ...]
    n_file_bytes: int  # size of the complete file


def read_header(path: Path) -> GgufHeader:
    """The header of a file. Raises ModelFileError, and OutOfMemoryError where there is no room to map the file."""
    with _mapped(path) as data:
        header, size = parse_header(data, str(path)), len(data)
    if size < header.n_file_bytes:
        raise ModelFileError(f"{path} is incomplete ({size} of {header.n_file_bytes} bytes); download it again")
    return header


def read_beginning(path: Path) -> Metadata:
    """The metadata that describes a model: without the vocabulary, which takes a tenth of a second to skip, if it comes
    last, as llama.cpp's converter and Ollama write it. Raises as `read_header`.
    """
    with _mapped(path) as data, _errors_of_parsing(data, str(path)):
        _, n_keys, offset = _counts(data, str(path))
        offsets, offset = _keys(data, n_keys, offset, str(path), only_beginning=True)
        return Metadata(bytes(data[:offset]), offsets)


@contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap]:
    """The file in memory. Raises ModelFileError, and OutOfMemoryError where there is no room to map it."""
    try:
        if path.is_dir():
            raise ModelFileError(about_folder(path))
        if not stat.S_ISREG(path.stat().st_mode):  # to open a pipe would wait for its other end
            raise ModelFileError(f"{path} is no regular file; give the path of a GGUF model")
        with path.open("rb") as file:
            if not file.seek(0, 2):
                raise ModelFileError(f"{path} is empty; download it again")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                yield data
    except FileNotFoundError as error:
        raise ModelFileError(f"{path}: no such file; give the path of a GGUF model") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        if getattr(error, "errno", None) == errno.ENOMEM:
            raise OutOfMemoryError(
                f"{path} cannot be mapped: there is not enough memory; close other programs"
            ) from error
        raise ModelFileError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def parse_header(data: Buffer, name: str) -> GgufHeader:
    """The header at the beginning of `data`, the bytes of the file `name` or a part of them. Raises ModelFileError."""
    with _errors_of_parsing(data, name):
        n_tensors, n_keys, offset = _counts(data, name)
        offsets, offset = _keys(data, n_keys, offset, name)
        described: dict[str, TensorInfo] = {}
        for _ in range(n_tensors):
            tensor, offset = _tensor(data, offset, name)
            if tensor.name in described:
                raise broken(name, f"it has {tensor.name!r} twice")
            described[tensor.name] = tensor
        if offset > len(data):
            raise EOFError
        metadata = Metadata(bytes(data[:offset]), offsets)
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            raise ModelFileError(f"{name} has an impossible alignment ({alignment!r}); download it again")
        start_of_weights = -(-offset // alignment) * alignment
        tensors = tuple(replace(tensor, offset=start_of_weights + tensor.offset) for tensor in described.values())
        end = _end_of_weights(tensors, alignment, name) if tensors else offset
        return GgufHeader(metadata, tensors, end)


@contextmanager
def _errors_of_parsing(data: Buffer, name: str) -> Iterator[None]:
    if data[:4] != _MAGIC:
        raise ModelFileError(f"{name} is not a GGUF file{about_data(data[:LOOKED_AT])}")
    try:
        yield
    except (struct.error, EOFError, OverflowError) as error:
        raise ModelFileError(f"{name} is incomplete, it ends inside its header; download it again") from error


def _counts(data: Buffer, name: str) -> tuple[int, int, int]:
    """Numbers of tensors and of keys, and where the first key is."""
    version, n_tensors, n_keys = struct.unpack_from("<IQQ", data, 4)
    if int.from_bytes(data[4:8], "big") in _VERSIONS:
        little = "get the file without -be in its name, or `gguf-convert-endian FILE little` converts it"
        raise ModelFileError(f"{name} is for big-endian machines, which this one is not; {little}")
    if version not in _VERSIONS:
        raise ModelFileError(f"{name} is GGUF version {version}; convert the model again, to version 3")
    if n_keys > _MOST_KEYS or n_tensors > _MOST_TENSORS:
        raise broken(name, f"it claims to have {n_keys:,} keys and {n_tensors:,} tensors")
    return n_tensors, n_keys, 24


def _keys(
    data: Buffer, n_keys: int, offset: int, name: str, only_beginning: bool = False
) -> tuple[dict[str, tuple[int, int]], int]:
    """Type and offset of each key's value, and where the keys end. only_beginning: as in `read_beginning`."""
    offsets: dict[str, tuple[int, int]] = {}
    for _ in range(n_keys):
        key, start = _name(data, offset, _LONGEST_KEY, name)
        if only_beginning and key.startswith("tokenizer.") and any(known.endswith(".block_count") for known in offsets):
            break
        offset = start
        if key in offsets:
            raise broken(name, f"it has {key!r} twice")
        (kind,) = _TYPE.unpack_from(data, offset)
        offsets[key] = (kind, offset + 4)
        offset = _skip(data, kind, offset + 4, name)
        if offset > len(data):
            raise EOFError
        if offset > _MOST_HEADER_BYTES:
            raise broken(name, f"its header has more than {_MOST_HEADER_BYTES:,} bytes")
    return offsets, offset


def broken(name: str, why: str) -> ModelFileError:
    """The error for a file that contradicts itself. name: of the file."""
    return ModelFileError(f"{name} is broken: {why}; download it again")


def _end_of_weights(tensors: tuple[TensorInfo, ...], alignment: int, name: str) -> int:
    """Where the last tensor ends. Raises ModelFileError for tensors that are not aligned, or share bytes."""
    end = 0
    for tensor in sorted(tensors, key=lambda tensor: tensor.offset):
        if tensor.offset % alignment:
            raise broken(name, f"{tensor.name!r} lies at an offset that is no multiple of {alignment}")
        if tensor.offset < end:
            raise broken(name, f"{tensor.name!r} overlaps another tensor")
        end = tensor.offset + tensor.n_bytes
    return end


def _tensor(data: Buffer, offset: int, name: str) -> tuple[TensorInfo, int]:
    """The tensor described at `offset`, with its offset after the header, and the end of the description."""
    tensor, offset = _name(data, offset, _LONGEST_TENSOR_NAME, name)
    (n_dimensions,) = _TYPE.unpack_from(data, offset)
    if n_dimensions > _MAX_DIMENSIONS:
        raise ModelFileError(f"{name} has a tensor with {n_dimensions} dimensions ({tensor}); download it again")
    shape = struct.unpack_from(f"<{n_dimensions}Q", data, offset + 4)
    offset += 4 + 8 * n_dimensions
    kind, start = _TYPE_AND_NUMBER.unpack_from(data, offset)
    try:
        ggml_type = ggml_types.numbered(kind)
    except ValueError as error:
        raise ModelFileError(f"{name} has weights of an unknown type ({tensor}: {kind}); upgrade gguf") from error
    if ggml_type.name in _NO_WEIGHTS and tensor.endswith(".weight") and not _TABLE.search(tensor):
        raise broken(name, f"{tensor!r} is of type {ggml_type.name}, in which there are no weights")
    n_bytes = prod(shape) // ggml_type.block * ggml_type.block_bytes
    if not 0 < prod(shape) <= _LARGEST or start + n_bytes > _LARGEST or (shape and shape[0] % ggml_type.block):
        raise broken(name, f"{tensor!r} has an impossible size ({' x '.join(map(str, shape))} of {ggml_type.name})")
    return TensorInfo(tensor, shape, ggml_type.name, n_bytes, start), offset + _TYPE_AND_NUMBER.size


def _name(data: Buffer, offset: int, longest: int, name: str) -> tuple[str, int]:
    """The name of a key or tensor at `offset`, and where it ends."""
    (length,) = _LENGTH.unpack_from(data, offset)
    if offset + 8 + length > len(data):
        raise EOFError
    text, end = _string(data, offset) if length <= longest else ("", 0)
    if not text or not text.isprintable() or "\ufffd" in text:
        raise broken(name, f"a key or tensor has no possible name (at byte {offset})")
    return text, end


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
    item, length = _TYPE_AND_NUMBER.unpack_from(data, offset)
    offset += _TYPE_AND_NUMBER.size
    if item in _SCALARS:
        return offset + int(length) * struct.calcsize("<" + _SCALARS[item])
    if item != _STRING:  # llama.cpp has no arrays of arrays either
        raise broken(name, f"it has an array of values of type {item}")
    if length > _MOST_STRINGS:
        raise broken(name, f"it has an array of {length:,} strings")
    unpack = _LENGTH.unpack_from
    for _ in range(length):
        offset += 8 + unpack(data, offset)[0]
    return offset


def _decode(data: Buffer, kind: int, offset: int) -> Any:
    """The value of type `kind` at `offset`. `_skip` has checked that it is whole."""
    if kind == _STRING:
        return _string(data, offset)[0]
    if kind != _ARRAY:
        return struct.unpack_from("<" + _SCALARS[kind], data, offset)[0]
    item, length = _TYPE_AND_NUMBER.unpack_from(data, offset)
    offset += _TYPE_AND_NUMBER.size
    if item in _SCALARS:
        return list(struct.unpack_from(f"<{length}{_SCALARS[item]}", data, offset))
    values = []
    for _ in range(length):
        value, offset = _string(data, offset)
        values.append(value)
    return values
