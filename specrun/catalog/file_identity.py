"""What identifies a model by its bytes, wherever its files lie."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from specrun.errors import ModelFileError

_IDENTITY_BYTES = 2**20  # hashed at the beginning and at the end of a file


def file_identity(paths: Sequence[Path]) -> str:
    """SHA-256 in hex over the size and the first and last MiB of each file of a model.

    It does not depend on where the files lie. Raises ModelFileError if a file cannot be read.
    """
    digest = hashlib.sha256()
    for path in paths:
        try:
            with path.open("rb") as file:
                size = file.seek(0, 2)
                digest.update(size.to_bytes(8, "little"))
                for offset in (0, max(size - _IDENTITY_BYTES, 0)):
                    file.seek(offset)
                    digest.update(file.read(_IDENTITY_BYTES))
        except OSError as error:
            raise ModelFileError(f"{path} cannot be read: {error.strerror}") from error
    return digest.hexdigest()
