"""The folder of prompts that were read: its files, the bytes that they may take, and how fast its disk is.

Knows nothing of llama.cpp, so that `specrun doctor` can look at it where llama.cpp cannot be loaded.
"""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from pathlib import Path

from specrun import kept_facts
from specrun.locations import cache_dir, existing_folder, file_bytes, private_folder, remove_leftovers

SUFFIX = ".state"  # of the files, each in a folder of what it may be used with
_SHARE_OF_FREE, _MOST_BYTES = 20, 8 << 30  # bounds of all files together
_ASSUMED_RATE = 200e6  # bytes a second that are read or written, until it was measured: a slow SSD
_TELLING_BYTES = 16_000_000  # of a file: smaller ones tell how long opening and closing takes
_SECONDS_OF_A_RATE = 86_400.0  # for which a measured rate is believed


def folder() -> Path:
    """Where the states of all prompts are kept. Only the owner may read what is there."""
    return cache_dir() / "prompts"


def files() -> list[Path]:
    """The files of all states, those used longest ago first."""
    return sorted(files_in(folder(), f"*/*{SUFFIX}"), key=_used)


def files_in(place: Path, pattern: str = f"*{SUFFIX}") -> list[Path]:
    """The files of states in a folder; none in one that belongs to another user, as after a run with sudo."""
    try:
        return list(place.glob(pattern))
    except OSError:
        return []


def forget() -> int:
    """Delete all states. Returns their bytes. Raises OSError."""
    n_bytes = sum(map(file_bytes, files()))
    if folder().exists():
        shutil.rmtree(folder())
    return n_bytes


def make_room(subject: Path, n_bytes: int) -> None:
    """Make a folder within this one, and delete what killed processes left, and what was used longest ago until so many
    further bytes are within the bound. Raises OSError.
    """
    private_folder(folder())
    private_folder(subject)
    for place in folder().iterdir():
        if place.is_dir():
            remove_leftovers(place)
    kept = files()
    total, most = sum(map(file_bytes, kept)) + n_bytes, most_bytes()
    for path in kept:
        if total <= most:
            break
        total -= file_bytes(path)
        delete(path)
        with suppress(OSError):  # others are in it
            if path.parent != subject:
                path.parent.rmdir()


def most_bytes() -> int:
    """Bytes that all files may take: those that they have count as free."""
    with suppress(OSError):
        free = shutil.disk_usage(existing_folder(folder())).free + sum(map(file_bytes, files()))
        return min(free // _SHARE_OF_FREE, _MOST_BYTES)
    return 0


def delete(path: Path) -> None:
    with suppress(OSError):  # on Windows while another process reads it
        path.unlink(missing_ok=True)


def _used(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # another process has just deleted it
        return 0.0


def rate(what: str) -> float:
    """Bytes a second at which files were read or written lately, or what is assumed: disks are busy at times."""
    if time.time() - _used(kept_facts.path_of("rates", _of())) > _SECONDS_OF_A_RATE:
        return _ASSUMED_RATE
    return kept_facts.recall("rates", _of(), lambda value: max(float(value[what]), 1.0)) or _ASSUMED_RATE


def learn_rate(what: str, n_bytes: int, seconds: float) -> None:
    if n_bytes >= _TELLING_BYTES:
        known = kept_facts.recall("rates", _of(), dict) or {}
        kept_facts.remember("rates", _of(), {**known, what: n_bytes / max(seconds, 1e-6)})


def _of() -> dict[str, str]:
    return {"folder": str(folder())}
