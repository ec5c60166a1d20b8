"""The storage that a model file lies on, and how fast it can be read."""

from __future__ import annotations

import mmap
import os
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

_CHUNK = 16 * 2**20  # so large that the seeks between chunks hardly count, even on a disk that spins
_MOST = 256 * 2**20
_LEAST = 2 * _CHUNK  # a smaller file is over before the speed can be told
_MOST_SECONDS = 1.0
_ALIGNMENT = 4096  # O_DIRECT: of offsets, lengths and addresses
_F_NOCACHE = 48  # fcntl.h of macOS


@dataclass(frozen=True)
class Storage:
    """device: what is mounted, e.g. `/dev/nvme0n1p2`. bytes_per_second: read bandwidth. None where it is not known."""

    device: str | None
    file_system: str | None
    bytes_per_second: float | None

    @classmethod
    def read(cls, path: Path) -> Storage:
        """Measure the storage under the file `path`; takes about a second, less on fast storage."""
        device, file_system = _mount_of(path)
        return cls(device, file_system, read_bandwidth(path))


def _mount_of(path: Path) -> tuple[str | None, str | None]:
    where = path.resolve()
    mounts = [part for part in psutil.disk_partitions(all=True) if where.is_relative_to(part.mountpoint)]
    if not mounts:
        return None, None
    # Of several mounts on one place the last covers the others, and max() takes the first: hence reversed.
    mount = max(reversed(mounts), key=lambda part: len(part.mountpoint))
    return mount.device, mount.fstype


def read_bandwidth(path: Path) -> float | None:
    """Bytes/s at which chunks spread over the file come from storage, not from the page cache.

    Reads at most 256 MB and, unless a single chunk takes longer, at most a second. None if the file is missing, too
    small to tell, or on a system where the cache cannot be passed by.
    """
    try:
        size = path.stat().st_size
        if size < _LEAST:
            return None
        file, drops_cache = _open_past_cache(path)
    except OSError:
        return None
    try:
        return _measure(file, size, drops_cache)
    except OSError:
        return None
    finally:
        os.close(file)


def _open_past_cache(path: Path) -> tuple[int, bool]:
    """A descriptor whose reads reach the storage, and whether the cache must be dropped before each of them.

    Raises OSError where that cannot be.
    """
    if hasattr(os, "O_DIRECT"):
        try:
            return os.open(path, os.O_RDONLY | os.O_DIRECT), False
        except OSError:  # a file system without it, such as tmpfs
            return os.open(path, os.O_RDONLY), True
    try:
        import fcntl
    except ImportError as error:  # Windows
        raise OSError("no way past the page cache") from error
    file = os.open(path, os.O_RDONLY)
    fcntl.fcntl(file, _F_NOCACHE, 1)
    return file, False


def _measure(file: int, size: int, drops_cache: bool) -> float | None:
    n_chunks = min(_MOST, size) // _CHUNK
    stride = (size - _CHUNK) // max(n_chunks - 1, 1) // _ALIGNMENT * _ALIGNMENT
    n_bytes, seconds = 0, 0.0
    with mmap.mmap(-1, _CHUNK) as buffer:  # page-aligned, as O_DIRECT wants it
        for i in range(n_chunks):
            if drops_cache:
                os.posix_fadvise(file, i * stride, _CHUNK, os.POSIX_FADV_DONTNEED)
            started = time.perf_counter()
            n_bytes += os.preadv(file, [buffer], i * stride)
            seconds += time.perf_counter() - started
            if seconds >= _MOST_SECONDS:
                break
    return n_bytes / seconds if n_bytes and seconds else None
