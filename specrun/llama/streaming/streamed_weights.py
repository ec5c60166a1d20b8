"""The weights of a loaded model, of which some layers take turns in a ring and all others stay in memory."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from specrun.catalog.weight_pages import PageRange, WeightPages, merged
from specrun.hardware.residency import Residency, ResidencyPlan
from specrun.llama.streaming import address_space
from specrun.llama.streaming.gate import Gate
from specrun.llama.streaming.refusal import CannotStreamError
from specrun.llama.streaming.ring import CHUNK, N_READERS, Request, Ring
from specrun.llama.streaming.weight_file import WeightFile


class StreamedWeights:
    """Made for a model that llama.cpp has mapped. Close it after the context and before the model.

    Until `install` is called, everything is as llama.cpp made it. The context must be made with `gate.callback`.
    Raises CannotStreamError if the files cannot be read or are not mapped.
    """

    def __init__(self, pages: WeightPages, plan: ResidencyPlan) -> None:
        self.gate = Gate()
        self.residency = Residency()
        self._plan = plan
        self._n_layers = len(pages.layers)
        self._ring: Ring | None = None
        stays = [part for i, parts in enumerate(pages.layers) if i not in plan.streamed for part in parts]
        self._resident = merged([*pages.others, *stays])
        self._streamed = [pages.layers[layer] for layer in plan.streamed]
        self._resources = ExitStack()
        self._files: list[WeightFile] = []
        try:
            for path in pages.files:
                self._files.append(WeightFile(path))
                self._resources.callback(self._files[-1].close)
            mappings = [_mappings_of(path) for path in pages.files]
            every = [*self._resident, *(part for parts in self._streamed for part in parts)]
            self._addresses = {
                part: address_space.address_of(mappings[part.file], part.offset, part.n_bytes) for part in every
            }
        except BaseException:
            self.close()
            raise

    @property
    def n_layers(self) -> int:
        """Number of the model's layers, resident ones included."""
        return self._n_layers

    @property
    def bytes_read(self) -> int:
        """Bytes that all passes so far have read, reading ahead included."""
        return self._ring.bytes_read if self._ring else 0

    @property
    def wait_seconds(self) -> float:
        """For how long all passes so far have waited for reads."""
        return self._ring.wait_seconds if self._ring else 0.0

    def install(self) -> None:
        """Put resident weights into memory that nothing evicts, and the ring in place of the others.

        Raises CannotStreamError or LlamaError if that fails; `close` then restores what llama.cpp made.
        """
        for file in self._files:
            file.check_unchanged()
        self._resources.callback(self._restore)
        locked = self._hold_resident()
        descriptor = os.memfd_create("specrun ring")
        self._resources.callback(os.close, descriptor)
        plan = self._plan
        os.ftruncate(descriptor, plan.n_slots * plan.slot_bytes)
        slots = mmap.mmap(descriptor, plan.n_slots * plan.slot_bytes)
        locked = address_space.lock(address_space.start_of(slots), len(slots)) and locked
        requests = [list(self._place(descriptor, slots, place)) for place in range(len(self._streamed))]
        self._ring = Ring(requests, plan.n_slots)
        self._resources.callback(self._ring.close)
        self.gate.guard(self._ring, plan.streamed)
        self.residency = Residency(
            "ring", plan.resident_bytes, plan.streamed_bytes, plan.n_slots, plan.slot_bytes, locked
        )

    def read_ahead(self) -> None:
        """From now on layers are read before the computation waits for them (see `Ring`)."""
        assert self._ring
        self._ring.read_ahead()

    def close(self) -> None:
        """End all reading and restore the mapping of the files. Safe to call twice."""
        self._resources.close()

    def __enter__(self) -> StreamedWeights:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _hold_resident(self) -> bool:
        """Copy the resident weights into memory of this process, in place. Returns whether it could be locked.

        A lock on the file's own pages would save the copy, but reading those by page faults is slow, and a file that
        is cut short would end the process at the next access.
        """
        for part in self._resident:
            address_space.map_memory(self._addresses[part], part.n_bytes)
        requests = [
            request
            for part in self._resident
            for request in self._requests(part, address_space.view(self._addresses[part], part.n_bytes))
        ]
        with ThreadPoolExecutor(N_READERS) as pool:
            for _ in pool.map(lambda request: request.file.read(request.into, request.offset), requests):
                pass
        for part in self._resident:
            address_space.make_read_only(self._addresses[part], part.n_bytes)
        return all(address_space.lock(self._addresses[part], part.n_bytes) for part in self._resident)

    def _place(self, descriptor: int, slots: mmap.mmap, place: int) -> Iterator[Request]:
        """Show a slot's memory where llama.cpp looks for a streamed layer. Yields the requests that fill it."""
        start = place % self._plan.n_slots * self._plan.slot_bytes
        for part in self._streamed[place]:
            address_space.map_file(self._addresses[part], part.n_bytes, descriptor, start)
            yield from self._requests(part, memoryview(slots)[start : start + part.n_bytes])
            start += part.n_bytes

    def _requests(self, part: PageRange, memory: memoryview) -> Iterator[Request]:
        for start in range(0, part.n_bytes, CHUNK):
            yield Request(self._files[part.file], memory[start : start + CHUNK], part.offset + start)

    def _restore(self) -> None:
        for part, address in self._addresses.items():
            address_space.map_file(address, part.n_bytes, self._files[part.file].descriptor, part.offset)


def _mappings_of(path: Path) -> list[address_space.Mapping]:
    try:
        return address_space.mappings_of(path)
    except OSError as error:
        raise CannotStreamError(f"this system does not tell what is mapped ({error.strerror})") from error
