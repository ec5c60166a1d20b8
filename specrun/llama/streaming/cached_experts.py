"""Experts of a mixture in memory of this process, which keeps as many as there is room for.

In place of the pages of all experts stand empty ones, which take no memory. What a router has chosen and is not there
is read past the page cache before the pass goes on, and what is dropped becomes empty again, or gives it its memory:
the experts that are used least often of late (docs/streaming.md). What every token uses stays in memory.

An expert is read with all pages that hold parts of it, and dropped with those that hold nothing else: pages that
experts share stay once they are there, and are counted as if all of them were.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np
from numpy.typing import NDArray

from specrun import clock
from specrun.catalog.layer_states import ExpertMatrix, ExpertPages, merged, n_bytes
from specrun.hardware.fit import Residency
from specrun.hardware.memory import Pressure
from specrun.llama import library
from specrun.llama.streaming import address_space
from specrun.llama.streaming.address_space import CannotStreamError, PageMover
from specrun.llama.streaming.gate import ExpertGate
from specrun.llama.streaming.weight_file import HeldPages, Request

# How much of an expert's rate the last token decides; half of it comes from the last 23 tokens. On the traces of
# docs/benchmarks/mixtures.md 0.02 to 0.1 differ by less than a point.
_AGEING = 0.03
_HUGE = 1 << 60  # more bytes than any expert has
_NONE = np.empty((0, 2), np.intp)


class CachedExperts(library.Closing):
    """Made for a mixture that llama.cpp has mapped. Close it after the context and before the model.

    n_used: experts of a layer that a token uses. room: bytes of memory for all weights in RAM.
    pressure: tells between passes whether the system runs short of memory. Fewer experts are then kept.

    paths: the model's files. layers: the layers that have experts in RAM. n_slots: as in `StreamedWeights`; none here.
    wait_seconds, bytes_read: how long passes have waited for experts, and the bytes that were read, filling included.

    Until `stream` is called, everything is as llama.cpp made it. The context must be made with `gate.callback`.
    Raises CannotStreamError if the files cannot be read or are not mapped, or the experts of a layer have no room.
    """

    n_slots = 0

    def __init__(self, pages: ExpertPages, n_used: int, room: int, pressure: Pressure) -> None:
        matrices, experts = pages.matrices(), range(pages.n_experts)
        sizes = np.array([[sum(matrix.own(i).n_bytes for matrix in layer) for i in experts] for layer in matrices])
        shared = n_bytes(merged([*pages.experts, *pages.dense])) - n_bytes(pages.dense) - int(sizes.sum())
        self._budget = room - n_bytes(pages.dense) - shared
        if self._budget < sizes.sum(axis=1).max():
            raise CannotStreamError("the experts of a layer do not fit into memory; try a smaller --ctx-size")
        self.paths, self.layers = pages.files, list(pages.layers)
        self.wait_seconds = 0.0
        self.bytes_read = 0
        self.gate = ExpertGate(pages.n_experts, n_used, self.layers, self._read)
        self._pages = pages
        self._is_streaming = False
        self._given_back = 0
        self._memory = HeldPages(pages.files, [*pages.experts, *pages.dense])
        # Each layer's matrices of all experts, and what makes an address in the mapping of an offset in their file.
        self._matrices = [[(matrix, self._shift(matrix)) for matrix in layer] for layer in matrices]
        self._cache = ExpertCache(sizes, n_used, budget=0)
        self._pressure = pressure
        self._readers = ThreadPoolExecutor(self._memory.n_readers, "reader")
        self._mover = PageMover()

    @property
    def residency(self) -> Residency:
        """How the weights are held now."""
        if not self._is_streaming:
            return Residency()
        dense, experts = n_bytes(self._pages.dense), n_bytes(self._pages.experts)
        locked, budget = self._memory.locked, self._cache.budget
        return Residency("experts", dense, experts, 0, 0, locked, self._given_back, cache_bytes=budget)

    @property
    def found(self) -> tuple[int, int]:
        """How many experts passes have used, each counted once in a pass, and how many of them were in memory."""
        return self._cache.n_chosen, self._cache.n_found

    def stream(self, strictly: bool = False) -> None:
        """Hold what every token uses and as many experts as fit, and from the next pass on read those that are missing.

        strictly: hold no expert for longer than until the next layer chooses, so that a computation that uses experts
        at any other time gets wrong results.
        Raises CannotStreamError, LlamaError or OSError if that fails; `close` then restores what llama.cpp made.
        """
        if not self._is_streaming:
            self._memory.begin()
            for part in self._pages.experts:  # some of which may be held for every token afterwards
                address_space.map_places(self._memory.addresses[part], part.n_bytes)
                self._mover.register(self._memory.addresses[part], part.n_bytes)
            self._memory.pin(self._pages.dense)
            self._is_streaming = True
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
        self._memory.check_length()
        self.gate.begin_pass()

    def close(self) -> None:
        """End all reading and restore the mapping of the files. Safe to call twice."""
        self._readers.shutdown()
        self._mover.close()
        self._is_streaming = False
        self._memory.close()

    def _read(self, layer: int, counts: NDArray[np.int64]) -> None:
        """Read the experts that are missing, in place of those that are least worth keeping.

        counts: int64[n_experts], the tokens of a pass that use each expert of the layer.
        """
        # Before the first pass llama.cpp's mapping has them; the last layer of a pass without logits has no tokens.
        if not self._is_streaming or not counts.any():
            return
        started = clock.now()
        index = self.layers.index(layer)
        missing, dropped = self._cache.choose(index, counts)
        self._free(dropped, [own for expert in missing.tolist() for own in self._own(index, expert)])
        if len(missing):
            self._load([(index, missing)])
        self.wait_seconds += clock.now() - started

    def _load(self, chosen: Iterable[tuple[int, NDArray[np.intp]]]) -> None:
        """Read experts of layers, which the cache counts as kept. Raises LlamaError if one of them cannot be read."""
        chosen = [(layer, experts) for layer, experts in chosen if len(experts)]
        requests = iter([request for layer, experts in chosen for request in self._requests(layer, experts)])
        reads = [self._readers.submit(_read, requests) for _ in range(self._memory.n_readers)]
        try:
            self.bytes_read += sum(read.result() for read in reads)
        except BaseException:  # Ctrl-C too
            for layer, experts in chosen:
                self._cache.forget(layer, experts)
            for _ in requests:
                pass  # so that readers find nothing more to read
            wait(reads)
            for layer, experts in chosen:
                self._free(np.stack((np.full_like(experts, layer), experts), axis=1))
            raise

    def _shift(self, matrix: ExpertMatrix) -> int:
        file, offset = matrix.pages.file, matrix.pages.offset
        pages = next(pages for pages in self._pages.experts if pages.file == file and offset < pages.end)
        return self._memory.addresses[pages] - pages.offset

    def _requests(self, layer: int, experts: NDArray[np.intp]) -> Iterator[Request]:
        for matrix, shift in self._matrices[layer]:
            for first, last in runs(experts):
                part = matrix.around(first, last)
                if part.n_bytes:  # else every token uses these pages
                    yield from self._memory.requests(part, address_space.view(shift + part.offset, part.n_bytes))

    def _own(self, layer: int, expert: int) -> Iterator[tuple[int, int]]:
        """Address and bytes of the pages that hold an expert's matrices and nothing else."""
        for matrix, shift in self._matrices[layer]:
            part = matrix.own(expert)
            yield shift + part.offset, part.n_bytes

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


def runs(experts: NDArray[np.intp]) -> list[tuple[int, int]]:
    """First and last of each run of consecutive experts. experts: ascending, at least one."""
    ends = np.flatnonzero(np.diff(experts) > 1)
    return list(zip(experts[[0, *(ends + 1)]].tolist(), experts[[*ends, -1]].tolist(), strict=True))


class ExpertCache:
    """Chooses what is read and what is dropped; the memory is somebody else's.

    sizes: int64[n_layers, n_experts], bytes that are free again when an expert is dropped. n_used: experts of a layer
    that a token uses. budget: bytes of all experts that are kept.

    kept: bool[n_layers, n_experts]. n_bytes: of all that is kept. n_chosen, n_found: experts that passes have used so
    far, each counted once in a pass, and how many of them were kept at that time.
    """

    def __init__(self, sizes: NDArray[np.int64], n_used: int, budget: int) -> None:
        self.budget = budget
        self.kept = np.zeros(sizes.shape, np.bool_)
        self.n_bytes = self.n_chosen = self.n_found = 0
        self._sizes = sizes
        self._smallest = int(np.min(sizes, where=sizes > 0, initial=_HUGE))
        self._n_used = n_used
        self._rates = np.full(sizes.shape, n_used / sizes.shape[1])  # uses of an expert by a token, recent ones most

    def choose(self, layer: int, counts: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """A pass uses experts of a layer, which are kept from now on, even if they alone exceed the budget.

        counts: int64[n_experts], by how many tokens of the pass each expert is used.
        Returns the experts that have to be read, ascending, and (layer, expert) of those that are dropped, int[n, 2].
        """
        n_tokens = int(counts.sum()) / self._n_used
        rest = (1 - _AGEING) ** n_tokens
        self._rates[layer] = rest * self._rates[layer] + (1 - rest) / n_tokens * counts
        is_used = counts > 0
        missing = np.flatnonzero(is_used & ~self.kept[layer])
        n_used = int(np.count_nonzero(is_used))
        self.n_chosen += n_used
        self.n_found += n_used - len(missing)
        if not len(missing):
            return missing, _NONE
        stays = np.zeros_like(self.kept)
        stays[layer] = is_used
        self.n_bytes += int(self._sizes[layer, missing].sum())
        dropped = self._drop(self.kept & ~stays)
        self.kept[layer, missing] = True
        return missing, dropped

    def fill(self) -> list[NDArray[np.intp]]:
        """Keep as many experts as the budget allows, of all layers alike. Returns those of each layer to be read."""
        across_layers = np.where(self.kept, 0, self._sizes).T
        taken = np.cumsum(across_layers).reshape(across_layers.shape).T
        new = (self.n_bytes + taken <= self.budget) & ~self.kept
        self.kept |= new
        self.n_bytes += int(self._sizes[new].sum())
        return [np.flatnonzero(experts) for experts in new]

    def shrink(self, n_bytes: int) -> NDArray[np.intp]:
        """Keep so many bytes less than now, but at least a layer. Returns (layer, expert) of those that are dropped."""
        self.budget = max(self.n_bytes - n_bytes, int(self._sizes.sum(axis=1).max()))
        return self._drop(self.kept)

    def forget(self, layer: int, experts: NDArray[np.intp]) -> None:
        """These experts, which are kept, could not be read."""
        self.kept[layer, experts] = False
        self.n_bytes -= int(self._sizes[layer, experts].sum())

    def _drop(self, droppable: NDArray[np.bool_]) -> NDArray[np.intp]:
        """Of these experts, drop those with the lowest rates until all that is kept is within the budget."""
        excess = self.n_bytes - self.budget
        candidates = np.flatnonzero(droppable & (self._sizes > 0))
        if excess <= 0 or not len(candidates):
            return _NONE
        rates, sizes = self._rates.ravel()[candidates], self._sizes.ravel()[candidates]
        n = min(excess // self._smallest + 1, len(candidates))
        lowest = np.argpartition(rates, n - 1)[:n]
        lowest = lowest[np.argsort(rates[lowest])]
        freed = np.cumsum(sizes[lowest])
        n = min(int(np.searchsorted(freed, excess)) + 1, n)
        self.n_bytes -= int(freed[n - 1])
        dropped = candidates[lowest[:n]]
        self.kept.ravel()[dropped] = False
        return np.stack(np.unravel_index(dropped, self.kept.shape), axis=1)
