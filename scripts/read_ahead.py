"""How far the page cache reads ahead of page faults on the disk of a file, changed for a while (Linux, root)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SYS = Path("/sys")


class ReadAheadError(Exception):
    """Why it cannot be changed; the message is one line."""


def setting_of(path: Path, sys: Path = SYS) -> Path:
    """The kernel's file with the KiB that are read ahead on the disk of `path`."""
    device = path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    # A partition is read as its disk is, whose folder contains that of the partition.
    disk = (sys / "dev" / "block" / number).resolve()
    folders = [sys / "class" / "bdi" / number, disk / "queue", disk.parent / "queue"]
    for folder in folders:
        if (folder / "read_ahead_kb").is_file():
            return folder / "read_ahead_kb"
    raise ReadAheadError(f"the system does not say how far it reads ahead on the disk of {path}")


@contextmanager
def read_ahead(path: Path, kib: int, sys: Path = SYS) -> Iterator[None]:
    """Read so many KiB ahead inside the block, in files that are opened there; afterwards as before.

    Raises ReadAheadError if that is not allowed.
    """
    setting = setting_of(path, sys)
    before = setting.read_text()
    _write(setting, str(kib))
    try:
        yield
    finally:
        _write(setting, before)


def _write(setting: Path, text: str) -> None:
    try:
        setting.write_text(text)
    except OSError as error:
        raise ReadAheadError(f"{setting} cannot be written ({error.strerror}); it needs root") from error
