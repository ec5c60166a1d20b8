"""Where specrun keeps its files, and how files are read and written."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import secrets
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, TypeVar

import platformdirs

from specrun.errors import SpecrunError

if TYPE_CHECKING:
    from functools import _lru_cache_wrapper

Found = TypeVar("Found")

_PRIVATE_FILE, _PRIVATE_FOLDER, _OTHERS = 0o600, 0o700, 0o077
_LEFT_BEHIND = 60.0  # seconds after which nothing is still being written
_WINDOWS_WAITS = (0.01, 0.03, 0.1, 0.3, 0.6)  # seconds until a file is tried again that another process reads
_LOCK_SECONDS = 5.0  # to wait until another process is done with a folder
_SETTLED_S = 3.0  # a file that was written to later may be written to again without another time of change


def data_dir() -> Path:
    """`$SPECRUN_DATA_DIR`, or the user's data directory for specrun."""
    return _folder("SPECRUN_DATA_DIR", platformdirs.user_data_dir)


def config_dir() -> Path:
    """`$SPECRUN_CONFIG_DIR`, or the user's configuration directory for specrun."""
    return _folder("SPECRUN_CONFIG_DIR", platformdirs.user_config_dir)


def cache_dir() -> Path:
    """`$SPECRUN_CACHE_DIR`, or the user's cache directory for specrun. What lies there can be made again."""
    return _folder("SPECRUN_CACHE_DIR", platformdirs.user_cache_dir)


def _folder(variable: str, usual: Callable[[str], str]) -> Path:
    try:
        return Path(os.environ.get(variable) or usual("specrun"))
    except RuntimeError as error:
        raise SpecrunError(f"this user has no home; set HOME, or {variable} to a folder for specrun") from error


def read_bytes(path: Path, error_type: type[SpecrunError], most: int | None = None) -> bytes:
    """The content of a file that the user named, of `most` bytes at most. Raises `error_type` if that fails."""
    try:
        with path.open("rb") as file:
            data = file.read(-1 if most is None else most + 1)
    except OSError as error:
        raise error_type(f"{path} cannot be read: {error.strerror}; check the path") from error
    if most is not None and len(data) > most:
        raise error_type(f"{path} has more than {most >> 20} MiB; choose a smaller file")
    return data


def decode(data: bytes, source: str, error_type: Callable[[str], Exception]) -> str:
    """`data` as text, without a byte order mark. Raises `error_type`, which names the `source`, if it is not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        where = f"byte 0x{error.object[error.start]:02x} at offset {error.start}"
        raise error_type(f"{source} is not UTF-8 ({where}); convert it first") from error


def encode(text: str, source: str, error_type: Callable[[str], Exception]) -> bytes:
    """`text` as UTF-8. Raises `error_type`, which names the `source`, for lone surrogates.

    JSON can have them, as `\\ud83d`, and Python makes one of each byte of the command line that is not UTF-8.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        where = f"\\u{ord(text[error.start]):04x} at character {error.start + 1} is a lone surrogate"
        raise error_type(f"{source} is not UTF-8 ({where}); convert it first") from error


def typed(text: str, source: str, error_type: Callable[[str], Exception]) -> str:
    """What somebody typed, on a command line or a terminal. Raises `error_type`, as `encode`, if it is not UTF-8.

    Where the locale is ASCII, Python makes lone surrogates of the bytes of all other characters.
    """
    with suppress(UnicodeError):
        return text.encode(errors="surrogateescape").decode()
    return encode(text, source, error_type).decode()


def pasted(name: str) -> str:
    """The name of a model without blanks and quotes around it, which are no part of it, unless it is a file's."""
    return name if names_file(name) else name.strip().strip("\"'").strip()


def user_path(text: str) -> Path:
    """The path, in which a `~` at the beginning is the user's home; as it is where the system knows no home."""
    return Path(os.path.expanduser(text))  # noqa: PTH111 - pathlib's raises where a container's user has no home


def names_file(text: str) -> bool:
    """Whether a text that may be anything is the path of a file."""
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # too long for a name, or with a NUL
        return False


def existing_folder(path: Path) -> Path:
    """The folder, or the nearest one above it that is there; the path itself if none is."""
    return next((place for place in (path, *path.parents) if place.exists()), path)


def file_bytes(path: Path) -> int:
    """Size of a file in bytes; 0 if there is no such file."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def file_state(file: Path | int) -> tuple[int, int, int, int]:
    """Device, inode, size and time of change of a file, or of an open one by its descriptor; zeros if it is not there.

    They tell whether it is the same file, with the content that it had. Whether files elsewhere have the same content,
    `catalog.gguf_file.file_identity` says.
    """
    try:
        stat = os.stat(file)  # noqa: PTH116 - a path has no stat of an open file
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return 0, 0, 0, 0
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


def of_files(read: _lru_cache_wrapper[Found], paths: Sequence[Path], *given: object) -> Found:
    """What `read` finds in these files: what is kept of them in their present state. What changed just now is read
    each time, and takes the place of nothing that is kept. Files that are missing have a state, too.
    """
    states = tuple(map(file_state, paths))
    is_settled = max(changed for *_, changed in states) < (time.time() - _SETTLED_S) * 1e9
    return (read if is_settled else read.__wrapped__)(states, *given)


def parse_json(text: str | bytes) -> Any:
    """The JSON value of a text. Raises ValueError if it is not JSON, or is nested too deeply for Python."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def given_json(text: str, source: str, error_type: Callable[[str], Exception]) -> Any:
    """The JSON value of a text that somebody gave. Raises `error_type`, which names the `source`, if there is none.

    Python also takes NaN, Infinity and, as infinite, 1e999. Written again, they would not be JSON.
    """
    try:
        return json.loads(text, parse_constant=_no_number, parse_float=_finite)
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if "\n" in text else ""
        why = f"is not JSON: {error.msg} at {line}column {error.colno}"
    except OverflowError as error:
        why = f"has {error}, which is not a number that JSON can represent"
    except RecursionError:
        why = "is nested too deeply"
    except ValueError:  # Python refuses integers with thousands of digits
        why = "has a number that is too long"
    raise error_type(f"{source} {why}")


def _finite(number: str) -> float:
    value = float(number)
    return value if math.isfinite(value) else _no_number(number)


def _no_number(number: str) -> NoReturn:
    raise OverflowError(number)


def json_text(value: Any, encoding: str = "utf-8", indent: int | None = None) -> str:
    """A JSON value as text, with escapes only where `encoding` lacks a character, as UTF-8 lacks lone surrogates.

    Raises ValueError for numbers that are not finite.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent)
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return json.dumps(value, indent=indent)
    return text


def set_aside(path: Path) -> str:
    """Rename a damaged file of specrun's own, so that it can still be saved. Returns a clause that says where it is."""
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
    remove_leftovers(path.parent, path.name)
    # Two threads may write the same file, and so may processes of the same number in two containers.
    unfinished = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with open(unfinished, "wb", opener=owner_only if private else None) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _put(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _put(file: Path, place: Path) -> None:
    """Rename a file to one that may be there. Windows refuses while anybody reads that one, which takes moments."""
    for seconds in _WINDOWS_WAITS if sys.platform == "win32" else ():
        try:
            file.replace(place)
            return
        except PermissionError:
            time.sleep(seconds)
    file.replace(place)


def owner_only(path: str, flags: int) -> int:
    """An `opener` for files that only the owner may read and write, whatever the umask, also if they were there."""
    descriptor = os.open(path, flags, _PRIVATE_FILE)
    try:
        if stat.S_IMODE(os.fstat(descriptor).st_mode) != _PRIVATE_FILE:
            Path(path).chmod(_PRIVATE_FILE)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def remove_leftovers(folder: Path, name: str | None = None) -> None:
    """Remove what processes that were killed left of a file in `folder`; None for any file. Raises OSError."""
    unfinished = re.compile(rf"\.{re.escape(name) if name else '.+'}\.(\d+)-[0-9a-f]{{8}}")
    with os.scandir(folder) as entries:
        found = [(entry, int(match[1])) for entry in entries if (match := unfinished.fullmatch(entry.name))]
    if not found:
        return
    import psutil  # takes time, and is hardly ever needed

    for entry, process in found:
        with suppress(FileNotFoundError):  # another process may remove it as well
            # Another container that shares the folder may be writing: its processes have other numbers there.
            if not psutil.pid_exists(process) and time.time() - entry.stat().st_mtime > _LEFT_BEHIND:
                Path(entry.path).unlink()


def private_folder(path: Path) -> Path:
    """Make a folder, created if missing, and all that lies in it readable by its owner only. Raises OSError."""
    for missing in [folder for folder in reversed([path, *path.parents]) if not folder.exists()]:
        missing.mkdir(_PRIVATE_FOLDER, exist_ok=True)
    if stat.S_IMODE(path.stat().st_mode) != _PRIVATE_FOLDER:
        path.chmod(_PRIVATE_FOLDER)
    for file in path.iterdir():
        if not file.is_symlink() and file.is_file() and file.stat().st_mode & _OTHERS:
            file.chmod(_PRIVATE_FILE)
    return path


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Only one process at a time is inside such a block for this folder. Raises OSError after seconds of waiting."""
    from filelock import FileLock, Timeout  # takes time, and most commands lock nothing

    lock = FileLock(folder / ".lock", mode=_PRIVATE_FILE)
    try:
        lock.acquire(timeout=_LOCK_SECONDS)
    except Timeout as error:
        raise OSError(errno.EAGAIN, "another specrun has been writing there for seconds") from error
    try:
        yield
    finally:
        lock.release()
