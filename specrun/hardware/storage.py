"""The storage that a model file lies on, its read bandwidth, and files that are read past the system's page cache."""

from __future__ import annotations

import errno
import mmap
import os
import sys
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

if sys.platform == "darwin":
    import fcntl

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


PAGE = 4096  # bytes; addresses, lengths and offsets of reads are multiples of it


class UncachedFile:
    """An open file. Close it when nothing reads from it any more.

    n_bytes: size of the file when it was opened.
    is_direct: whether reads go around the page cache. Where the file system refuses that, `forget` lets the cache drop
        what was read.
    Raises OSError if the file cannot be read in either way. Windows has no such reads that Python knows of.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_direct = True
        try:
            self._open()
        except OSError:
            self.is_direct = False
            self._open()
        self.n_bytes = os.fstat(self.descriptor).st_size

    def _open(self) -> None:
        """Open the file, and read a page of it: some file systems refuse to read directly only when it is tried."""
        flags = os.O_RDONLY
        if sys.platform == "linux":
            flags |= os.O_DIRECT if self.is_direct else 0
        self.descriptor = os.open(self.path, flags)
        try:
            if sys.platform == "darwin":
                fcntl.fcntl(self.descriptor, fcntl.F_NOCACHE, 1)
            with mmap.mmap(-1, PAGE) as page:  # anonymous mappings are page-aligned
                self.read_into(page, 0)
        except BaseException:
            self.close()
            raise

    def read_into(self, memory: memoryview | mmap.mmap, offset: int) -> int:
        """Fill memory with the bytes at `offset`, or with fewer; returns their number. Raises OSError."""
        if sys.platform == "win32":
            raise OSError(errno.ENOTSUP, "the page cache cannot be bypassed")
        return os.preadv(self.descriptor, [memory], offset)

    def forget(self, offset: int, n_bytes: int) -> None:
        """Let the page cache drop these bytes, if reads go through it."""
        if sys.platform == "linux" and not self.is_direct:
            os.posix_fadvise(self.descriptor, offset, n_bytes, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Close the descriptor. Safe to call twice."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
