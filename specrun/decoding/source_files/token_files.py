"""The file format of draft sources: token ids as arrays of little-endian int32, mapped from disk when they are read.

| part   | content                                                                             |
| magic  | 16 bytes: the kind of file                                                          |
| length | bytes of the header as 8 decimal digits, then 8 spaces                              |
| header | JSON, padded with spaces so that the arrays begin at a multiple of 64 bytes         |
| arrays | int32 values of all arrays, one array after the other; `int32s` in the header counts them |
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from specrun.errors import DraftSourceError
from specrun.locations import locked, parse_json, private_folder, whole_file
from specrun.speculation.sources.source import Int32Array

_INT32 = np.dtype("<i4")
_ALIGNMENT = 64  # bytes
_PREFIX = 32  # bytes of magic and length together
_MAX_HEADER = 1 << 20  # bytes of a header that are read at most, whatever its length field says


class DamagedTokensError(DraftSourceError):
    """A file that is not what it should be, or was made with another tokenizer."""


def write(
    path: Path,
    magic: bytes,
    fingerprint: str,
    header: dict[str, Any],
    arrays: Sequence[Int32Array],
    private: bool = False,
) -> None:
    """Write a file atomically; if that fails, what was at `path` stays. Raises DraftSourceError.

    magic: 16 bytes. fingerprint: of the tokenizer. private: make the file readable by its owner
    only, whatever the umask.
    """
    text = json.dumps({"tokenizer": fingerprint, **header, "int32s": sum(array.size for array in arrays)}).encode()
    text += b" " * (-(_PREFIX + len(text)) % _ALIGNMENT)
    try:
        with whole_file(path, private) as file:
            file.write(magic + f"{len(text):08d}        ".encode() + text)
            for array in arrays:
                file.write(np.ascontiguousarray(array, _INT32).data)
    except OSError as error:
        raise DraftSourceError(f"{path} cannot be written: {error.strerror}") from error


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Inside the block no other process changes `path`, whose folder is made private. Raises DraftSourceError."""
    try:
        with locked(private_folder(path.parent)):
            yield
    except OSError as error:
        raise DraftSourceError(f"{path} cannot be written: {error.strerror}") from error


def read(path: Path, magic: bytes, kind: str, fingerprint: str) -> tuple[dict[str, Any], Int32Array]:
    """The header of a file and int32[int32s], the values of all its arrays, mapped read-only.

    kind: names the expected kind of file in the error message. Raises DamagedTokensError for a file of another kind or
        of a tokenizer with another fingerprint, or one that is not as long as its header says, and DraftSourceError for
        one that cannot be read.
    """
    try:
        with path.open("rb") as file:
            prefix = file.read(_PREFIX)
            if prefix[: len(magic)] != magic:
                raise DamagedTokensError(f"{path} is not {kind}")
            length = int(prefix[len(magic) :])
            header: dict[str, Any] = dict(parse_json(file.read(min(length, _MAX_HEADER))))
        n_values = int(header["int32s"])
        start = _PREFIX + length
        if n_values < 0 or path.stat().st_size != start + n_values * _INT32.itemsize:
            raise DamagedTokensError(f"{path} is damaged: it is not as long as its header says")
        if header.get("tokenizer") != fingerprint:
            raise DamagedTokensError(f"{path} was made with another tokenizer than this target's; make it again")
        if not n_values:
            return header, np.zeros(0, np.int32)  # memmap refuses to map nothing
        return header, np.asarray(np.memmap(path, _INT32, "r", start, (n_values,)))
    except OSError as error:
        raise DraftSourceError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedTokensError(f"{path} is damaged: its header cannot be read") from error
