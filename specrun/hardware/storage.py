"""The storage that a model file lies on, and its read bandwidth."""

from __future__ import annotations

import mmap
import os
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

_CHUNK = 16 * 2**20  # bytes; so large that seeking between chunks hardly takes time, even on a hard disk
_MAX_BYTES = 256 * 2**20
_MIN_FILE_BYTES = 2 * _CHUNK  # a smaller file is read too quickly to measure
_MAX_SECONDS = 1.0
_ALIGNMENT = 4096  # bytes; O_DIRECT needs it for offsets, lengths and addresses
_F_NOCACHE = 48  # in fcntl.h of macOS


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
    with suppress(OSError), ExitStack() as stack:
        size = path.stat().st_size
        if size >= _MIN_FILE_BYTES:
            file, must_drop_cache = _open_uncached(path)
            stack.callback(os.close, file)
            return _measure(file, size, must_drop_cache)
    return None


def _open_uncached(path: Path) -> tuple[int, bool]:
    """A descriptor whose reads bypass the page cache, and whether the cache must be dropped before each read."""
    if hasattr(os, "O_DIRECT"):
        try:
            return os.open(path, os.O_RDONLY | os.O_DIRECT), False
        except OSError:  # a file system without it, such as tmpfs
            return os.open(path, os.O_RDONLY), True
    try:
        import fcntl
    except ImportError as error:  # Windows
        raise OSError("the page cache cannot be bypassed") from error
    file = os.open(path, os.O_RDONLY)
    fcntl.fcntl(file, _F_NOCACHE, 1)
    return file, False


def _measure(file: int, size: int, must_drop_cache: bool) -> float | None:
    n_chunks = min(_MAX_BYTES, size) // _CHUNK
    stride = (size - _CHUNK) // max(n_chunks - 1, 1) // _ALIGNMENT * _ALIGNMENT
    n_bytes, seconds = 0, 0.0
    with mmap.mmap(-1, _CHUNK) as buffer:  # anonymous mappings are page-aligned, as O_DIRECT requires
        for i in range(n_chunks):
            if must_drop_cache:
                os.posix_fadvise(file, i * stride, _CHUNK, os.POSIX_FADV_DONTNEED)
            started = time.perf_counter()
            n_bytes += os.preadv(file, [buffer], i * stride)
            seconds += time.perf_counter() - started
            if seconds >= _MAX_SECONDS:
                break
    return n_bytes / seconds if n_bytes and seconds else None
