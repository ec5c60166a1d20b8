"""The storage that a model file lies on, and its read bandwidth."""

from __future__ import annotations

import mmap
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from specrun.hardware.uncached_file import PAGE, UncachedFile

_CHUNK = 16 * 2**20  # bytes; so large that seeking between chunks hardly takes time, even on a hard disk
_MAX_BYTES = 256 * 2**20
_MIN_FILE_BYTES = 2 * _CHUNK  # a smaller file is read too quickly to measure
_MAX_SECONDS = 1.0


@dataclass(frozen=True)
class Storage:
    """The storage under a file; None where unknown."""

    device: str | None  # that is mounted, e.g. `/dev/nvme0n1p2`
    file_system: str | None  # e.g. `ext4`
    bytes_per_second: float | None  # read bandwidth

    @classmethod
    def read(cls, path: Path) -> Storage:
        """Measure the storage under the file `path`; takes about a second, less on fast storage."""
        device, file_system = _mount_of(path)
        return cls(device, file_system, read_bandwidth(path))


def _mount_of(path: Path) -> tuple[str | None, str | None]:
    """Device and file system of the mount that contains `path`."""
    resolved = path.resolve()
    mounts = [part for part in psutil.disk_partitions(all=True) if resolved.is_relative_to(part.mountpoint)]
    if not mounts:
        return None, None
    # The last of several mounts on one folder hides the others; reversed, because max() takes the first.
    mount = max(reversed(mounts), key=lambda part: len(part.mountpoint))
    return mount.device, mount.fstype


def read_bandwidth(path: Path) -> float | None:
    """Bytes per second at which chunks spread over the file are read from storage, bypassing the page cache.

    Reads at most 256 MiB, and for at most a second unless a single chunk takes longer. None if the file is missing or
    too small, or if the system cannot bypass the cache.
    """
    with suppress(OSError):
        if path.stat().st_size >= _MIN_FILE_BYTES:
            with closing(UncachedFile(path)) as file:
                return _measure(file)
    return None


def _measure(file: UncachedFile) -> float | None:
    n_chunks = min(_MAX_BYTES, file.n_bytes) // _CHUNK
    stride = (file.n_bytes - _CHUNK) // max(n_chunks - 1, 1) // PAGE * PAGE
    n_bytes, seconds = 0, 0.0
    with mmap.mmap(-1, _CHUNK) as buffer:  # anonymous mappings are page-aligned
        for i in range(n_chunks):
            file.forget(i * stride, _CHUNK)
            started = time.perf_counter()
            n_bytes += file.read_into(buffer, i * stride)
            seconds += time.perf_counter() - started
            if seconds >= _MAX_SECONDS:
                break
    return n_bytes / seconds if n_bytes and seconds else None
