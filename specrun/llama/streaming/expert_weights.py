"""The weights of a mixture: what every token uses stays in memory, and experts are read when a router has chosen them.

Here experts stay in llama.cpp's mapping of the file, so that the page cache keeps as many of them as there is room for.
But a page fault reads either a page, or with read-ahead its neighbours too, which belong to experts that nobody chose.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import psutil
from numpy.typing import NDArray

from specrun import clock
from specrun.catalog.layer_states import ExpertPages, PageRange, n_bytes
from specrun.hardware.residency import Residency, RingSettings
from specrun.llama import library
from specrun.llama.streaming import address_space
from specrun.llama.streaming.address_space import PAGE
from specrun.llama.streaming.gate import ExpertGate
from specrun.llama.streaming.held_pages import HeldPages


class ExpertWeights(library.Closing):
    """Made for a mixture that llama.cpp has mapped. Close it after the context and before the model.

    n_used: experts of a layer that a token uses. layers: the layers that have experts in RAM.
    wait_seconds: for how long passes have asked for experts; how long page faults then wait for them is not known.

    Until `stream` is called, everything is as llama.cpp made it. The context must be made with `gate.callback`. Raises
    CannotStreamError if the files cannot be read or are not mapped.
    """

    def __init__(self, pages: ExpertPages, n_used: int, settings: RingSettings) -> None:
        self.layers = list(pages.layers)
        self.gate = ExpertGate(pages.n_experts, n_used, self.layers, self._read)
        self.paths = pages.files
        self.wait_seconds = 0.0
        self._pages = pages
        self._is_streaming = False
        self._read_before = _bytes_read()
        self._memory = HeldPages(pages.files, [*pages.experts, *pages.dense], settings)
        # Where each layer's matrices of all experts begin, and the bytes of one expert; looked up in every layer.
        self._matrices = {
            layer: [(self._address_of(one.file, one.offset), one.n_bytes // pages.n_experts) for one in tensors]
            for layer, tensors in pages.layers.items()
        }

    @property
    def residency(self) -> Residency:
        """How the weights are held."""
        pages = self._pages
        if not self._is_streaming:
            return Residency()
        return Residency("experts", n_bytes(pages.dense), n_bytes(pages.experts), locked=self._memory.locked)

    @property
    def found(self) -> tuple[int, int]:
        """How many experts passes have used, and how many of them were in memory; 0, as the page cache does not say."""
        return 0, 0

    @property
    def bytes_read(self) -> int:
        """Bytes that this process had read from storage since this was made."""
        return _bytes_read() - self._read_before

    def stream(self) -> None:
        """Hold what every token uses, and from the next pass on read experts as they are chosen.

        Raises CannotStreamError, LlamaError or OSError if that fails; `close` then restores what llama.cpp made.
        """
        self._memory.begin()
        for part in self._pages.experts:
            self._show(part)
        self._memory.pin(self._pages.dense)
        self._is_streaming = True

    def begin_pass(self) -> None:
        """To be called before every pass. Raises LlamaError if a file was cut short, before page faults find out."""
        self._memory.check_length()
        self.gate.begin_pass()

    def close(self) -> None:
        """End all reading and restore the mapping of the files. Safe to call twice."""
        self._is_streaming = False
        self._memory.close()

    def _address_of(self, file: int, offset: int) -> int:
        """Where llama.cpp looks for what lies at an offset in a file, among experts."""
        pages = next(pages for pages in self._pages.experts if pages.file == file and offset < pages.end)
        return self._memory.addresses[pages] + offset - pages.offset

    def _show(self, part: PageRange) -> None:
        """Prepare pages of experts, some of which may be held for every token afterwards."""
        address_space.expect_any_order(self._memory.addresses[part], part.n_bytes)

    def _read(self, layer: int, counts: NDArray[np.int64]) -> None:
        """See that the experts that tokens use are read. counts: int64[n_experts], the tokens that use each expert."""
        # Before the first pass llama.cpp's mapping has them; the last layer of a pass without logits has no tokens.
        if self._is_streaming and counts.any():
            started = clock.now()
            self._fetch(layer, counts)
            self.wait_seconds += clock.now() - started

    def _fetch(self, layer: int, counts: NDArray[np.int64]) -> None:
        """Begin to read what the page cache lacks; page faults wait for what is still on its way."""
        for address, size in self._matrices[layer]:
            for first, last in runs(np.flatnonzero(counts)):
                start = (address + first * size) // PAGE * PAGE
                address_space.expect_soon(start, address + (last + 1) * size - start)


def runs(experts: NDArray[np.intp]) -> list[tuple[int, int]]:
    """First and last of each run of consecutive experts. experts: ascending, at least one."""
    ends = np.flatnonzero(np.diff(experts) > 1)
    return list(zip(experts[[0, *(ends + 1)]].tolist(), experts[[*ends, -1]].tolist(), strict=True))


def _bytes_read() -> int:
    """Bytes that this process had read from storage so far; 0 where the system does not say."""
    process = psutil.Process()
    with suppress(psutil.Error, OSError, RuntimeError):
        if hasattr(process, "io_counters"):
            return int(process.io_counters().read_bytes)
    return 0
