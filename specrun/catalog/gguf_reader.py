"""Reads the header of a GGUF file, without the weights, and says of another file what it is instead.

gguf's own reader makes a numpy view of every string, which takes 11 seconds with a vocabulary of 150,000 tokens. This
reader skips arrays. The layout is specified in ggml's docs/gguf.md.

A file may come from anyone, so contradictions are refused here: counts for which the file has no room, names that occur
twice, tensors that overlap or lie outside of the file. A count in the file never decides how much memory is taken.
"""

from __future__ import annotations

import errno
import mmap
import re
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from specrun.catalog.file_names import listed, models_among, shards
from specrun.catalog.gguf_header import (
    ARRAY,
    LENGTH,
    SCALARS,
    STRING,
    Metadata,
    TensorInfo,
    broken,
    type_numbered,
)
from specrun.display_text import one_line
from specrun.errors import ModelFileError, OutOfMemoryError
from specrun.locations import file_bytes

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

_GET_GGUF = (
    "specrun runs GGUF files: look for a repository on the hub whose name ends with -GGUF, or convert the model with "
    "llama.cpp's convert_hf_to_gguf.py"
)
_POINTER = b"version https://git-lfs"
_PAGE = re.compile(rb"\s*(<!--((?!-->).)*-->\s*)*<(!doctype html|html)", re.IGNORECASE | re.DOTALL)
_OLD_MAGICS = (b"lmgg", b"fmgg", b"tjgg", b"algg")  # ggml, ggmf, ggjt, ggla, in the order of their bytes
_LOOKED_AT = 512  # bytes of a file that is no GGUF
_QUOTED = 60  # characters of it in a message


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
    with _mapped(path) as data, _cursor(data, str(path)) as cursor:
        places = cursor.keys(only_beginning=True)
        return Metadata(bytes(data[: cursor.offset]), places)


@contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap]:
    """The file in memory. Raises ModelFileError, and OutOfMemoryError where there is no room to map it."""
    try:
        if path.is_dir():
            raise ModelFileError(_about_folder(path))
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
    with _cursor(data, name) as cursor:
        places = cursor.keys()
        described: dict[str, TensorInfo] = {}
        for _ in range(cursor.n_tensors):
            tensor = cursor.tensor()
            if tensor.name in described:
                raise broken(name, f"it has {tensor.name!r} twice")
            described[tensor.name] = tensor
        offset = cursor.offset
        if offset > len(data):
            raise EOFError
        metadata = Metadata(bytes(data[:offset]), places)
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            raise ModelFileError(f"{name} has an impossible alignment ({alignment!r}); download it again")
        start_of_weights = -(-offset // alignment) * alignment
        tensors = tuple(replace(tensor, offset=start_of_weights + tensor.offset) for tensor in described.values())
        end = _end_of_weights(tensors, alignment, name) if tensors else offset
        return GgufHeader(metadata, tensors, end)


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


@contextmanager
def _cursor(data: Buffer, name: str) -> Iterator[_Cursor]:
    """A cursor at the beginning of the header, whose errors say what is wrong with the file `name`."""
    if data[:4] != _MAGIC:
        raise ModelFileError(f"{name} is not a GGUF file{_about_data(data[:_LOOKED_AT])}")
    try:
        yield _Cursor(data, name)
    except (struct.error, EOFError, OverflowError) as error:
        raise ModelFileError(f"{name} is incomplete, it ends inside its header; download it again") from error


class _Cursor:
    """Reads the parts of a header in turn. name: of the file, for messages.

    offset: where the next part begins. n_tensors, n_keys: how many of these the header has.
    """

    def __init__(self, data: Buffer, name: str) -> None:
        self.offset = len(_MAGIC)
        self._data, self._file = data, name
        version, self.n_tensors, self.n_keys = self._unpack("IQQ")
        if int.from_bytes(self._data[4:8], "big") in _VERSIONS:
            little = "get the file without -be in its name, or `gguf-convert-endian FILE little` converts it"
            raise ModelFileError(f"{self._file} is for big-endian machines, which this one is not; {little}")
        if version not in _VERSIONS:
            raise ModelFileError(f"{self._file} is GGUF version {version}; convert the model again, to version 3")
        if self.n_keys > _MOST_KEYS or self.n_tensors > _MOST_TENSORS:
            raise broken(self._file, f"it claims to have {self.n_keys:,} keys and {self.n_tensors:,} tensors")

    def keys(self, only_beginning: bool = False) -> dict[str, tuple[int, int, int]]:
        """Type, offset and end of each key's value. only_beginning: as in `read_beginning`."""
        places: dict[str, tuple[int, int, int]] = {}
        for _ in range(self.n_keys):
            key = self._name(_LONGEST_KEY)
            is_vocabulary = key.startswith("tokenizer.")
            if only_beginning and is_vocabulary and any(known.endswith(".block_count") for known in places):
                break
            if key in places:
                raise broken(self._file, f"it has {key!r} twice")
            (kind,) = self._unpack("I")
            start = self.offset
            self._skip(kind)
            places[key] = (kind, start, self.offset)
            if self.offset > len(self._data):
                raise EOFError
            if self.offset > _MOST_HEADER_BYTES:
                raise broken(self._file, f"its header has more than {_MOST_HEADER_BYTES:,} bytes")
        return places

    def tensor(self) -> TensorInfo:
        """The next tensor, with its offset after the header."""
        tensor = self._name(_LONGEST_TENSOR_NAME)
        (n_dimensions,) = self._unpack("I")
        if n_dimensions > _MAX_DIMENSIONS:
            what = f"a tensor with {n_dimensions} dimensions ({tensor})"
            raise ModelFileError(f"{self._file} has {what}; download it again")
        shape = self._unpack(f"{n_dimensions}Q")
        kind, start = self._unpack("IQ")
        try:
            ggml_type = type_numbered(kind)
        except ValueError as error:
            why = f"weights of an unknown type ({tensor}: {kind})"
            raise ModelFileError(f"{self._file} has {why}; upgrade gguf") from error
        if ggml_type.name in _NO_WEIGHTS and tensor.endswith(".weight") and not _TABLE.search(tensor):
            raise broken(self._file, f"{tensor!r} is of type {ggml_type.name}, in which there are no weights")
        n_bytes = prod(shape) // ggml_type.block * ggml_type.block_bytes
        if not 0 < prod(shape) <= _LARGEST or start + n_bytes > _LARGEST or (shape and shape[0] % ggml_type.block):
            size = f"{' x '.join(map(str, shape))} of {ggml_type.name}"
            raise broken(self._file, f"{tensor!r} has an impossible size ({size})")
        return TensorInfo(tensor, shape, ggml_type.name, n_bytes, start)

    def _unpack(self, layout: str) -> tuple[Any, ...]:
        """The next values, by their format characters of `struct`."""
        values = struct.unpack_from(f"<{layout}", self._data, self.offset)
        self.offset += struct.calcsize(f"<{layout}")
        return values

    def _name(self, longest: int) -> str:
        """The name of a key or tensor. longest: bytes that it may have."""
        start = self.offset
        (length,) = self._unpack("Q")
        text = self._data[self.offset : self.offset + length].decode("utf-8", "replace") if length <= longest else ""
        self.offset += length
        if self.offset > len(self._data):
            raise EOFError
        if not text or not text.isprintable() or "\ufffd" in text:
            raise broken(self._file, f"a key or tensor has no possible name (at byte {start})")
        return text

    def _skip(self, kind: int) -> None:
        """Go to the end of a value of this type."""
        if kind in SCALARS:
            self.offset += struct.calcsize("<" + SCALARS[kind])
        elif kind == STRING:
            (length,) = self._unpack("Q")
            self.offset += length
        elif kind == ARRAY:
            self._skip_array()
        else:
            why = f"metadata of an unknown type ({kind})"
            raise ModelFileError(f"{self._file} has {why}; upgrade specrun or download it again")

    def _skip_array(self) -> None:
        item, length = self._unpack("IQ")
        if item in SCALARS:
            self.offset += length * struct.calcsize("<" + SCALARS[item])
            return
        if item != STRING:  # llama.cpp has no arrays of arrays either
            raise broken(self._file, f"it has an array of values of type {item}")
        if length > _MOST_STRINGS:
            raise broken(self._file, f"it has an array of {length:,} strings")
        data, offset, unpack = self._data, self.offset, LENGTH.unpack_from
        for _ in range(length):
            offset += LENGTH.size + unpack(data, offset)[0]
        self.offset = offset


def _about_data(beginning: bytes) -> str:
    """What a file is that is no GGUF file, and what to do, as the end of a sentence. beginning: _LOOKED_AT bytes."""
    if beginning.startswith(_POINTER):
        return " but a Git LFS pointer, which stands for one; `git lfs pull` or `specrun pull` fetches the file itself"
    if _PAGE.match(beginning):
        return " but a web page; download the file itself, whose address on the hub has /resolve/ in place of /blob/"
    if beginning.startswith(_OLD_MAGICS):
        return f" but of an older format, which llama.cpp no longer reads; {_GET_GGUF}"
    if not any(beginning):
        return " but begins with zeros, as an unfinished download does; download it again"
    if text := _text(beginning):
        return f" but a text that begins with {text!r}; check the path, or download it again"
    return f"; {_GET_GGUF}"


def _about_folder(folder: Path) -> str:
    """What to say of a folder that was given as a model."""
    files = models_among(path.name for path in folder.iterdir())
    # A target is larger than its draft.
    files.sort(key=lambda name: -sum(file_bytes(folder / shard) for shard in shards(name)))
    if not files and next(folder.glob("*.safetensors"), None):
        return f"{folder} has the model in another format; {_GET_GGUF}"
    example = f", such as {folder / files[0]}" if files else ""
    others = f" (beside it: {listed(files[1:])})" if files[1:] else ""
    return f"{folder} is a folder; give a .gguf file{example}{others}"


def _text(data: bytes) -> str | None:
    """The first line of a text; None for anything else. A character may be cut off at its end."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data":
            return None
        text = data[: error.start].decode("utf-8")
    text = " ".join(text.split())
    return one_line(text[:_QUOTED]) if text.isprintable() else None
