"""The memory of a ring's slots, which can be shown at many addresses."""

from __future__ import annotations

import mmap
import os
from contextlib import suppress

from specrun.llama.streaming import address_space
from specrun.llama.streaming.address_space import CannotStreamError


class SlotMemory:
    """Memory that is a file without a name, so that it can be mapped again and again. Close it after the ring.

    All of it is taken at once, and it is best made before anything else has filled memory: pages that were free
    together lie together, and reads into such memory are up to twice as fast as into pages from all over, because a
    disk takes a limited number of pieces in one request.

    Raises CannotStreamError if there is no such memory.
    """

    def __init__(self, n_bytes: int) -> None:
        try:
            self.descriptor = os.memfd_create("specrun ring")
        except OSError as error:
            raise CannotStreamError(f"this system has no memory without a name ({error.strerror})") from error
        try:
            self._take(n_bytes)
        except BaseException:
            os.close(self.descriptor)
            raise

    def _take(self, n_bytes: int) -> None:
        try:
            os.ftruncate(self.descriptor, n_bytes)
            os.posix_fallocate(self.descriptor, 0, n_bytes)
            self.mapping = mmap.mmap(self.descriptor, n_bytes)
        except OSError as error:
            raise CannotStreamError(f"there is no memory for reading ahead ({error.strerror})") from error

    def __len__(self) -> int:
        return len(self.mapping)

    def resize(self, n_bytes: int) -> None:
        """Take more of the system's memory, or give back what lies behind the first `n_bytes`.

        `mapping` is another object then. What is shown elsewhere stays, and must not be looked at behind the end.
        Raises CannotStreamError if there is no such memory.
        """
        before = self.mapping
        self._take(n_bytes)
        with suppress(BufferError):  # see `close`
            before.close()

    def lock(self) -> bool:
        """Keep it in RAM. Returns False if the system does not allow it."""
        return address_space.lock(address_space.start_of(self.mapping), len(self))

    def close(self) -> None:
        """Give the memory back as soon as nothing shows it or looks at it any more. Safe to call twice."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
        with suppress(BufferError):  # requests of a ring still look at it; it goes when they go
            self.mapping.close()
