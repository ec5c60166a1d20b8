"""Pages of llama.cpp's mapping of a model, in whose place this process puts memory of its own."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from specrun.catalog.layer_states import PageRange
from specrun.hardware.residency import RingSettings
from specrun.llama.streaming import address_space
from specrun.llama.streaming.ring import Request
from specrun.llama.streaming.weight_file import WeightFile


class HeldPages:
    """Finds the pages of a model that llama.cpp has mapped. Close it after the context and before the model.

    files: the model's files. ranges: the pages that may be replaced. settings: how files are read.
    addresses: where llama.cpp looks for each of `ranges`.
    locked: whether all that was copied is locked into memory, so that it is never swapped.
    Raises CannotStreamError if the files cannot be read or are not mapped.
    """

    def __init__(self, files: Sequence[Path], ranges: Iterable[PageRange], settings: RingSettings) -> None:
        self.settings = settings
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
        with ThreadPoolExecutor(self.settings.n_readers) as pool:
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
        size = self.settings.request_bytes
        for start in range(0, part.n_bytes, size):
            yield Request(self._files[part.file], memory[start : start + size], part.offset + start)

    def close(self) -> None:
        """Restore llama.cpp's mapping, and close the files. Safe to call twice."""
        self._resources.close()

    def _restore(self) -> None:
        for part, address in self.addresses.items():
            address_space.map_file(address, part.n_bytes, self._files[part.file].descriptor, part.offset)
