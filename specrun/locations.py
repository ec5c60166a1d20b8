"""Where specrun keeps things, and how they come there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import platformdirs


def data_dir() -> Path:
    """`$SPECRUN_DATA_DIR`, or the user's data directory for specrun."""
    return Path(os.environ.get("SPECRUN_DATA_DIR") or platformdirs.user_data_dir("specrun"))


def config_dir() -> Path:
    """`$SPECRUN_CONFIG_DIR`, or the user's configuration directory for specrun."""
    return Path(os.environ.get("SPECRUN_CONFIG_DIR") or platformdirs.user_config_dir("specrun"))


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file whole or not at all. Raises OSError."""
    with whole_file(path) as file:
        file.write(json.dumps(value, indent=1).encode())


@contextmanager
def whole_file(path: Path, private: bool = False) -> Iterator[BinaryIO]:
    """A file to write that appears at `path` when it is complete, or not at all; what was there stays until then.

    private: for its owner's eyes only, whatever the umask. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(unfinished, "wb", opener=_owner_only if private else None) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _owner_only(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
