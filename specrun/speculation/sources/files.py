"""Files of draft sources: a magic, a header in JSON, then arrays of little-endian int32.

magic    16 bytes
length   of the header, 8 digits and 8 spaces
header   JSON, padded with spaces so that the arrays begin at a multiple of 64 bytes
arrays   int32, one behind the other
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specrun.errors import DraftSourceError
from specrun.locations import whole_file

Int32Array = NDArray[np.int32]

_INT32 = np.dtype("<i4")
_ALIGNMENT = 64
_PREFIX = 32
_MAX_HEADER = 1 << 20


def write(
    path: Path, magic: bytes, header: dict[str, Any], arrays: Sequence[Int32Array], private: bool = False
) -> None:
    """Write a file whole or not at all.

    magic: 16 bytes. private: for its owner's eyes only, whatever the umask. Raises DraftSourceError if the disk
    refuses; what was at `path` then stays.
    """
    text = json.dumps({**header, "int32s": sum(array.size for array in arrays)}).encode()
    text += b" " * (-(_PREFIX + len(text)) % _ALIGNMENT)
    try:
        with whole_file(path, private) as file:
            file.write(magic + f"{len(text):08d}        ".encode() + text)
            for array in arrays:
                file.write(np.ascontiguousarray(array, _INT32).data)
    except OSError as error:
        raise DraftSourceError(f"{path} cannot be written: {error.strerror}") from error


def read(path: Path, magic: bytes, what: str) -> tuple[dict[str, Any], Int32Array]:
    """The header, and all int32s that follow it, mapped read-only.

    what: what the file should be, for the message. Raises DraftSourceError for a file that cannot be read, is
    something else or has not the length that its header tells.
    """
    try:
        with path.open("rb") as file:
            prefix = file.read(_PREFIX)
            if prefix[: len(magic)] != magic:
                raise DraftSourceError(f"{path} is not {what}")
            length = int(prefix[len(magic) :])
            header: dict[str, Any] = dict(json.loads(file.read(min(length, _MAX_HEADER))))
        n_values = int(header["int32s"])
        start = _PREFIX + length
        if n_values < 0 or path.stat().st_size != start + n_values * _INT32.itemsize:
            raise DraftSourceError(f"{path} is damaged: it is not as long as its header says")
        if not n_values:
            return header, np.zeros(0, np.int32)  # nothing to map is an error to memmap
        return header, np.asarray(np.memmap(path, _INT32, "r", start, (n_values,)))
    except OSError as error:
        raise DraftSourceError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DraftSourceError(f"{path} is damaged: its header cannot be read") from error


def check_tokenizer(path: Path, header: dict[str, Any], fingerprint: str) -> None:
    """Raise DraftSourceError if a file's tokens are not those of the tokenizer `fingerprint`."""
    if header.get("tokenizer") != fingerprint:
        raise DraftSourceError(f"{path} was made with another tokenizer than this target's; make it again")
