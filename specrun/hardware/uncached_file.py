"""A file that is read from its disk, past the system's page cache: to time the disk, or where memory is scarce."""

from __future__ import annotations

import errno
import mmap
import os
import sys
from pathlib import Path

if sys.platform == "darwin":
    import fcntl

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
            self.descriptor = _open(path, directly=True)
        except OSError:
            self.is_direct = False
            self.descriptor = _open(path, directly=False)
        self.n_bytes = os.fstat(self.descriptor).st_size

    def read_into(self, memory: memoryview | mmap.mmap, offset: int) -> int:
        """Fill memory with the bytes at `offset`, or with fewer; returns their number. Raises OSError."""
        return _read_into(self.descriptor, memory, offset)

    def forget(self, offset: int, n_bytes: int) -> None:
        """Let the page cache drop these bytes, if reads go through it."""
        if sys.platform == "linux" and not self.is_direct:
            os.posix_fadvise(self.descriptor, offset, n_bytes, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Close the descriptor. Safe to call twice."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _open(path: Path, directly: bool) -> int:
    """A descriptor that a page was read from: some file systems only refuse to read directly when it is tried."""
    flags = os.O_RDONLY
    if sys.platform == "linux":
        flags |= os.O_DIRECT if directly else 0
    descriptor = os.open(path, flags)
    try:
        if sys.platform == "darwin":
            fcntl.fcntl(descriptor, fcntl.F_NOCACHE, 1)
        with mmap.mmap(-1, PAGE) as page:  # anonymous mappings are page-aligned
            _read_into(descriptor, page, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _read_into(descriptor: int, memory: memoryview | mmap.mmap, offset: int) -> int:
    if sys.platform == "win32":
        raise OSError(errno.ENOTSUP, "the page cache cannot be bypassed")
    return os.preadv(descriptor, [memory], offset)
