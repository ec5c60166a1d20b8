"""A model file that is read past the page cache.

A disk takes a limited number of pieces in a request, and memory that was taken page by page is in as many pieces as it
has pages: 1,024 in 4 MiB. Huge pages make that two. Slots cannot consist of huge pages, because most systems give none
to memory that is shown at several addresses. So each thread reads into huge pages, and copies from there.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np

from specrun.errors import LlamaError
from specrun.hardware.storage import UncachedFile
from specrun.llama.streaming import address_space
from specrun.llama.streaming.address_space import CannotStreamError
from specrun.locations import file_state

_HUGE = 2 * 2**20  # bytes of a huge page; where they are larger, disks are not faster
_WHO_GETS_HUGE = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def huge_pages(n_bytes: int) -> memoryview | None:
    """Memory of huge pages; None if the system never gives them."""
    with suppress(OSError, MemoryError):  # no memory, or a kernel without huge pages
        if "[never]" not in _WHO_GETS_HUGE.read_text("utf-8"):
            memory = np.empty(n_bytes + _HUGE, np.uint8)
            start = -memory.ctypes.data % _HUGE
            address_space.expect_huge(memory.ctypes.data + start, n_bytes)
            return memory.data[start : start + n_bytes]
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


class WeightFile(UncachedFile):
    """An open file. Through the page cache it would take memory from the resident weights.

    Raises CannotStreamError if it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        try:
            super().__init__(path)
        except OSError as error:
            raise CannotStreamError(f"{path.name} cannot be read ({error.strerror})") from error
        self._opened = file_state(self.descriptor)

    def check_unchanged(self) -> None:
        """Raises CannotStreamError if another file has taken its place, or if it was written to."""
        if not self._opened == file_state(self.path) == file_state(self.descriptor):
            raise CannotStreamError(f"{self.path.name} was changed meanwhile")

    def check_length(self) -> None:
        """Raises LlamaError if the file has become shorter since it was opened."""
        if os.fstat(self.descriptor).st_size < self.n_bytes:
            raise LlamaError(f"{self.path} was cut short while it was in use; download it again")

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
                n_read = self.read_into(memory[done:], offset + done)
            except OSError as error:
                raise LlamaError(f"{self.path} cannot be read any more: {error.strerror}") from error
            if n_read == 0:
                raise LlamaError(f"{self.path} was cut short while it was in use; download it again")
            done += n_read
        if memory is not into:
            # Not `into[:wanted] = ...`, which would keep other threads from running meanwhile.
            np.copyto(np.frombuffer(into, np.uint8, wanted), np.frombuffer(memory, np.uint8, wanted))
        self.forget(offset, wanted)
        return wanted
