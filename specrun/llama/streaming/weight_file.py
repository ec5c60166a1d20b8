"""A model file that is read past the page cache.

A disk takes a limited number of pieces in a request, and memory that was taken page by page is in as many pieces as it
has pages: 1,024 in 4 MiB. Huge pages make that two. Slots cannot consist of huge pages, because most systems give none
to memory that is shown at several addresses. So each thread reads into huge pages, and copies from there.
"""

from __future__ import annotations

import mmap
import os
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np

from specrun.errors import LlamaError
from specrun.llama.streaming import address_space
from specrun.llama.streaming.address_space import CannotStreamError

_HUGE = 2 * 2**20  # bytes of a huge page; where they are larger, disks are not faster
_WHO_GETS_HUGE = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def huge_pages(n_bytes: int) -> memoryview | None:
    """Memory of huge pages; None if the system never gives them."""
    with suppress(OSError):  # no memory, or a kernel without huge pages
        if "[never]" not in _WHO_GETS_HUGE.read_text():
            mapping = mmap.mmap(-1, n_bytes + _HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            mapping.madvise(mmap.MADV_HUGEPAGE)
            start = -address_space.start_of(mapping) % _HUGE
            return memoryview(mapping)[start : start + n_bytes]
    return None


class _Buffer(threading.local):
    """Memory of this thread to read into."""

    n_bytes = 0
    memory: memoryview | None = None

    def of(self, n_bytes: int) -> memoryview | None:
        """So many bytes of it; None where reading directly is as fast."""
        if n_bytes > self.n_bytes:
            self.n_bytes, self.memory = n_bytes, huge_pages(n_bytes)
        return self.memory[:n_bytes] if self.memory else None


_buffer = _Buffer()


class WeightFile:
    """An open file. Close it when nothing reads from it any more.

    n_bytes: size of the file when it was opened.
    is_direct: whether reads go around the page cache (O_DIRECT). Where the file system refuses that, the cache is told
        to drop what was read, so that it does not grow at the expense of the resident weights.
    Raises CannotStreamError if the file cannot be read in either way.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_direct = True
        try:
            try:
                self.descriptor = _open(path, os.O_DIRECT)
            except OSError:
                self.is_direct = False
                self.descriptor = _open(path, 0)
        except OSError as error:
            raise CannotStreamError(f"{path.name} cannot be read ({error.strerror})") from error
        self._opened = os.fstat(self.descriptor)
        self.n_bytes = self._opened.st_size

    def check_unchanged(self) -> None:
        """Raises CannotStreamError if another file has taken its place, or if it was written to."""
        states = self._opened, self.path.stat(), os.fstat(self.descriptor)
        if len({(state.st_ino, state.st_dev, state.st_size, state.st_mtime_ns) for state in states}) > 1:
            raise CannotStreamError(f"{self.path.name} was changed meanwhile")

    def check_length(self) -> None:
        """Raises LlamaError if the file has become shorter since it was opened."""
        if os.fstat(self.descriptor).st_size < self.n_bytes:
            raise self._cut_short()

    def _cut_short(self) -> LlamaError:
        return LlamaError(f"{self.path} was cut short while it was in use; download it again")

    def read(self, into: memoryview, offset: int) -> int:
        """Fill `into` with the bytes at `offset`, as far as the file goes; returns their number.

        Address, length and offset are multiples of a page. Raises LlamaError if the file cannot be read, or has become
        shorter since it was opened.
        """
        wanted = min(len(into), self.n_bytes - offset)
        memory = (_buffer.of(len(into)) if self.is_direct else None) or into  # the page cache copies anyway
        done = 0
        while done < wanted:
            try:
                n_read = os.preadv(self.descriptor, [memory[done:]], offset + done)
            except OSError as error:
                raise LlamaError(f"{self.path} cannot be read any more: {error.strerror}") from error
            if n_read == 0:
                raise self._cut_short()
            done += n_read
        if memory is not into:
            # Not `into[:wanted] = ...`, which would keep other threads from running meanwhile.
            np.copyto(np.frombuffer(into, np.uint8, wanted), np.frombuffer(memory, np.uint8, wanted))
        if not self.is_direct:
            os.posix_fadvise(self.descriptor, offset, wanted, os.POSIX_FADV_DONTNEED)
        return wanted

    def close(self) -> None:
        """Close the descriptor. Safe to call twice."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _open(path: Path, flag: int) -> int:
    """A descriptor that a page was read from: some file systems only refuse O_DIRECT when it is used."""
    descriptor = os.open(path, os.O_RDONLY | flag)
    try:
        with mmap.mmap(-1, mmap.PAGESIZE) as page:
            os.preadv(descriptor, [page], 0)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
