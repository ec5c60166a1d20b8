"""Experts of a mixture in memory of this process, which keeps as many as there is room for.

In place of the pages of all experts stand empty ones, which take no memory. What a router has chosen and is not there
is read past the page cache before the pass goes on, and what is dropped becomes empty again, or gives it its memory.

Experts do not begin and end at pages. An expert is read with all pages that hold parts of it, and dropped with those
that hold nothing else: pages that experts share stay once they are there, and are counted as if all of them were.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from specrun.catalog.weight_pages import ExpertMatrix, ExpertPages, PageRange, merged, n_bytes
from specrun.hardware.expert_cache import ExpertCache
from specrun.hardware.memory import Pressure
from specrun.hardware.residency import Residency, RingSettings
from specrun.llama.streaming import address_space
from specrun.llama.streaming.address_space import CannotStreamError
from specrun.llama.streaming.expert_weights import ExpertWeights, runs
from specrun.llama.streaming.page_mover import PageMover
from specrun.llama.streaming.ring import Request


@dataclass(frozen=True)
class _Place:
    """Where the matrices of a layer's experts lie: address, and memory, of the first of the pages."""

    matrix: ExpertMatrix
    address: int
    memory: memoryview


class CachedExperts(ExpertWeights):
    """Made for a mixture that llama.cpp has mapped. Close it after the context and before the model.

    room: bytes of memory for all weights in RAM.
    pressure: tells between passes whether the system runs short of memory. Fewer experts are then kept.

    wait_seconds: for how long passes have waited for experts.
    Raises CannotStreamError as `ExpertWeights` does, and if there is no room for the experts of a layer.
    """

    def __init__(self, pages: ExpertPages, n_used: int, settings: RingSettings, room: int, pressure: Pressure) -> None:
        matrices, experts = pages.matrices(), range(pages.n_experts)
        sizes = np.array([[sum(matrix.own(i).n_bytes for matrix in layer) for i in experts] for layer in matrices])
        shared = n_bytes(merged([*pages.experts, *pages.dense])) - n_bytes(pages.dense) - int(sizes.sum())
        self._budget = room - n_bytes(pages.dense) - shared
        if self._budget < sizes.sum(axis=1).max():
            raise CannotStreamError("the experts of a layer do not fit into memory; try a smaller --ctx-size")
        super().__init__(pages, n_used, settings)
        self._cache = ExpertCache(sizes, n_used, budget=0)
        self._pressure = pressure
        self._given_back = self._n_read = 0
        self._places = [[self._place(matrix) for matrix in layer] for layer in matrices]
        self._n_readers = settings.n_readers
        self._readers = ThreadPoolExecutor(settings.n_readers, "reader")
        self._mover = PageMover()

    def _place(self, matrix: ExpertMatrix) -> _Place:
        address = self._address_of(matrix.pages.file, matrix.pages.offset)
        return _Place(matrix, address, address_space.view(address, matrix.pages.n_bytes))

    @property
    def residency(self) -> Residency:
        """How the weights are held now."""
        held = super().residency
        if held.mode == "off":
            return held
        return replace(held, cache_bytes=self._cache.budget, given_back_bytes=self._given_back)

    @property
    def bytes_read(self) -> int:
        """Bytes that passes have read so far, and those that filled the cache before."""
        return self._n_read

    @property
    def found(self) -> tuple[int, int]:
        """How many experts passes have used, each counted once in a pass, and how many of them were in memory."""
        return self._cache.n_chosen, self._cache.n_found

    def stream(self, strictly: bool = False) -> None:
        """Hold what every token uses and as many experts as fit, and from the next pass on read those that are missing.

        strictly: hold no expert for longer than until the next layer chooses, so that a computation that uses experts
        at any other time gets wrong results. Raises as `ExpertWeights.stream`.
        """
        if not self._is_streaming:
            super().stream()
        if not strictly:
            self._cache.budget = self._budget
            self._load(enumerate(self._cache.fill()))

    def begin_pass(self) -> None:
        """To be called before every pass. Raises LlamaError if a file was cut short."""
        shortage = self._pressure.shortage() if self._is_streaming else 0
        if shortage:
            before = self._cache.n_bytes
            self._free(self._cache.shrink(shortage))
            self._given_back += before - self._cache.n_bytes
        super().begin_pass()

    def close(self) -> None:
        """End all reading and restore the mapping of the files. Safe to call twice."""
        self._readers.shutdown()
        self._mover.close()
        super().close()

    def _show(self, part: PageRange) -> None:
        address_space.map_places(self._memory.addresses[part], part.n_bytes)
        self._mover.register(self._memory.addresses[part], part.n_bytes)

    def _fetch(self, layer: int, counts: NDArray[np.int64]) -> None:
        """Read the experts that are missing, in place of those that are least worth keeping."""
        index = self.layers.index(layer)
        missing, dropped = self._cache.choose(index, counts)
        self._free(dropped, [own for expert in missing.tolist() for own in self._own(index, expert)])
        if len(missing):
            self._load([(index, missing)])

    def _load(self, chosen: Iterable[tuple[int, NDArray[np.intp]]]) -> None:
        """Read experts of layers, which the cache counts as kept. Raises LlamaError if one of them cannot be read."""
        chosen = [(layer, experts) for layer, experts in chosen if len(experts)]
        requests = iter([request for layer, experts in chosen for request in self._requests(layer, experts)])
        reads = [self._readers.submit(_read, requests) for _ in range(self._n_readers)]
        try:
            self._n_read += sum(read.result() for read in reads)
        except BaseException:  # Ctrl-C too
            for layer, experts in chosen:
                self._cache.forget(layer, experts)
            for _ in requests:
                pass  # so that readers find nothing more to read
            wait(reads)
            for layer, experts in chosen:
                self._free(np.stack((np.full_like(experts, layer), experts), axis=1))
            raise

    def _requests(self, layer: int, experts: NDArray[np.intp]) -> Iterator[Request]:
        for place in self._places[layer]:
            for first, last in runs(experts):
                part = place.matrix.around(first, last)
                start = part.offset - place.matrix.pages.offset
                yield from self._memory.requests(part, place.memory[start : start + part.n_bytes])

    def _own(self, layer: int, expert: int) -> Iterator[tuple[int, int]]:
        """Address and bytes of the pages that hold an expert's matrices and nothing else."""
        for place in self._places[layer]:
            part = place.matrix.own(expert)
            yield place.address + part.offset - place.matrix.pages.offset, part.n_bytes

    def _free(self, dropped: NDArray[np.intp], new_owners: Iterable[tuple[int, int]] = ()) -> None:
        """Free the memory of experts. dropped: (layer, expert), int[n, 2]. new_owners: empty pages that get it."""
        following = iter(new_owners)
        for layer, expert in dropped.tolist():
            for address, size in self._own(layer, expert):
                owner, room = next(following, (0, 0))
                n_moved = min(size, room)
                if not n_moved or not self._mover.move(address, owner, n_moved):
                    n_moved = 0
                if size > n_moved:
                    address_space.give_back(address + n_moved, size - n_moved)


def _read(requests: Iterator[Request]) -> int:
    """Read what no other thread has taken of the same requests; returns bytes."""
    return sum(request.file.read(request.into, request.offset) for request in requests)
