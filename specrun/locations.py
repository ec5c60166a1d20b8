"""Where specrun keeps its files, and how files are read and written."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import platformdirs

from specrun.errors import SpecrunError


def data_dir() -> Path:
    """`$SPECRUN_DATA_DIR`, or the user's data directory for specrun."""
    return Path(os.environ.get("SPECRUN_DATA_DIR") or platformdirs.user_data_dir("specrun"))


def config_dir() -> Path:
    """`$SPECRUN_CONFIG_DIR`, or the user's configuration directory for specrun."""
    return Path(os.environ.get("SPECRUN_CONFIG_DIR") or platformdirs.user_config_dir("specrun"))


def cache_dir() -> Path:
    """`$SPECRUN_CACHE_DIR`, or the user's cache directory for specrun. What lies there can be made again."""
    return Path(os.environ.get("SPECRUN_CACHE_DIR") or platformdirs.user_cache_dir("specrun"))


def read_bytes(path: Path, error_type: type[SpecrunError]) -> bytes:
    """The content of a file that the user named. Raises `error_type` if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise error_type(f"{path} cannot be read: {error.strerror}; check the path") from error


def decode(data: bytes, source: str, error_type: type[SpecrunError]) -> str:
    """`data` as UTF-8 text, without the byte order mark that some editors write first.

    `source` names the data in the message. Raises `error_type` if the data is not UTF-8.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise error_type(
            f"{source} is not UTF-8 (byte 0x{byte:02x} at offset {error.start}); convert it first"
        ) from error


def file_bytes(path: Path) -> int:
    """Size of a file in bytes; 0 if there is no such file."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def parse_json(text: str | bytes) -> Any:
    """The JSON value of a text. Raises ValueError if it is none, also where it is nested too deeply for Python."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def set_aside(path: Path) -> str:
    """Rename a damaged file of specrun's own, so that nothing overwrites what can still be saved of it.

    Returns a part of a sentence that says where it is now. What was set aside under this name before is replaced. A
    file that cannot be renamed stays.
    """
    aside = path.with_name(f"{path.name}.damaged")
    try:
        path.replace(aside)
    except OSError:
        return "left where it is"
    return f"kept as {aside}"


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically, see `whole_file`. Raises OSError."""
    with whole_file(path) as file:
        file.write(json.dumps(value, indent=1).encode())


@contextmanager
def whole_file(path: Path, private: bool = False) -> Iterator[BinaryIO]:
    """Open a file for writing that replaces `path` only once it is complete.

    Missing folders are created. If an exception leaves the `with` block, whatever was at `path` stays unchanged.
    A link stays a link; a device or pipe, such as /dev/stdout, is written to. With `private`, only the owner may read
    the file, whatever the umask. Raises OSError.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    # Two threads may write the same file, and so may processes of the same number in two containers.
    unfinished = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
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
