"""Model files that are read past the page cache, into memory in place of pages of llama.cpp's mapping.

A disk takes a limited number of pieces in a request, and memory that was taken page by page is in as many pieces as it
has pages: 1,024 in 4 MiB. Huge pages make that two. Slots cannot consist of huge pages, because most systems give none
to memory that is shown at several addresses. So each thread reads into huge pages, and copies from there.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from specrun.catalog.layer_states import PageRange
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


@dataclass(frozen=True)
class Request:
    """A part of a layer: what to read, and the memory in its slot."""

    file: WeightFile
    into: memoryview
    offset: int  # in the file


class HeldPages:
    """Finds the pages of a model that llama.cpp has mapped. Close it after the context and before the model.

    files: the model's files. ranges: the pages that may be replaced.
    addresses: where llama.cpp looks for each of `ranges`.
    locked: whether all that was copied is locked into memory, so that it is never swapped.
    Raises CannotStreamError if the files cannot be read or are not mapped.
    """

    # Of the other ways that `specrun tune` timed before none was faster (docs/streaming.md).
    n_readers = 2  # threads, so that a request is waiting while the disk serves another
    request_bytes = 4 * 2**20  # of one request, in whole pages; far above what a disk needs to reach its rate

    def __init__(self, files: Sequence[Path], ranges: Iterable[PageRange]) -> None:
        self.locked = True
        self._held: set[PageRange] = set()
        self._has_begun = False
        self._resources = ExitStack()
        self._files: list[WeightFile] = []
        try:
            for path in files:
                self._files.append(WeightFile(path))
                self._resources.callback(self._files[-1].close)
            gc.collect()  # an array over the file may be left of an error that was caught, and would be another mapping
            mappings = [address_space.mappings_of(path) for path in files]
            self.addresses = {
                part: address_space.address_of(mappings[part.file], part.offset, part.n_bytes) for part in ranges
            }
        except BaseException:
            self.close()
            raise

    def begin(self) -> None:
        """To be called before anything is replaced, which `close` takes back.

        Raises CannotStreamError if a file has changed.
        """
        if not self._has_begun:
            for file in self._files:
                file.check_unchanged()
            self._has_begun = True
            self._resources.callback(self._restore)

    def check_length(self) -> None:
        """Raises LlamaError if a file has become shorter since it was opened."""
        for file in self._files:
            file.check_length()

    def pin(self, parts: Sequence[PageRange]) -> None:
        """Copy pages into memory of this process, in place, and lock it if that is allowed. What is held stays.

        A lock on the file's own pages would save the copy, but reading those by page faults is slow, and a file that
        is cut short would end the process at the next access. Raises LlamaError, CannotStreamError or OSError.
        """
        parts = [part for part in parts if part not in self._held]
        for part in parts:
            address_space.map_memory(self.addresses[part], part.n_bytes)
        views = (address_space.view(self.addresses[part], part.n_bytes) for part in parts)
        requests = [request for part, view in zip(parts, views, strict=True) for request in self.requests(part, view)]
        with ThreadPoolExecutor(self.n_readers) as pool:
            sum(pool.map(lambda part: part.file.read(part.into, part.offset), requests))  # raises what a thread raised
        for part in parts:
            address_space.make_read_only(self.addresses[part], part.n_bytes)
            self.locked = address_space.lock(self.addresses[part], part.n_bytes) and self.locked
        self._held.update(parts)

    def show(self, part: PageRange, descriptor: int, offset: int) -> None:
        """Put pages of another file in place of these, whose memory is given back if they were held."""
        address_space.map_file(self.addresses[part], part.n_bytes, descriptor, offset)
        self._held.discard(part)

    def requests(self, part: PageRange, memory: memoryview) -> Iterator[Request]:
        """What has to be read so that `memory` holds the pages."""
        size = self.request_bytes
        for start in range(0, part.n_bytes, size):
            yield Request(self._files[part.file], memory[start : start + size], part.offset + start)

    def close(self) -> None:
        """Restore llama.cpp's mapping, and close the files. Safe to call twice."""
        self._resources.close()

    def _restore(self) -> None:
        for part, address in self.addresses.items():
            address_space.map_file(address, part.n_bytes, self._files[part.file].descriptor, part.offset)
