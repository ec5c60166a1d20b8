"""The weights of a mixture: what every token uses stays in memory, and experts are read when a router has chosen them.

Experts stay in llama.cpp's mapping of the file, so that the page cache keeps as many of them as there is room for. But
a page fault reads either a page, or with read-ahead its neighbours too, which belong to experts that nobody chose.
"""

from __future__ import annotations

import time
from contextlib import suppress

import numpy as np
import psutil

from specrun.catalog.gguf_header import TensorInfo
from specrun.catalog.weight_pages import ExpertPages, n_bytes
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
        self.wait_seconds = 0.0
        self._pages = pages
        self._is_streaming = False
        self._read_before = _bytes_read()
        self._memory = HeldPages(pages.files, [*pages.experts, *pages.dense], settings)
        # Where each layer's matrices of all experts begin, and the bytes of one expert; looked up in every layer.
        self._matrices = {
            layer: [(self._address_of(tensor), tensor.n_bytes // pages.n_experts) for tensor in tensors]
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
    def bytes_read(self) -> int:
        """Bytes that this process had read from storage since this was made."""
        return _bytes_read() - self._read_before

    def stream(self) -> None:
        """Hold what every token uses, and from the next pass on read experts as they are chosen.

        Raises CannotStreamError, LlamaError or OSError if that fails; `close` then restores what llama.cpp made.
        """
        self._memory.begin()
        for part in self._pages.experts:
            address_space.expect_any_order(self._memory.addresses[part], part.n_bytes)
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

    def _address_of(self, tensor: TensorInfo) -> int:
        pages = next(pages for pages in self._pages.experts if pages.file == tensor.file and tensor.offset < pages.end)
        return self._memory.addresses[pages] + tensor.offset - pages.offset

    def _read(self, layer: int, experts: list[int]) -> None:
        """Begin to read these experts of a layer, ascending; page faults wait for what is still on its way."""
        if not self._is_streaming or not experts:  # the last layer of a pass without logits has no tokens
            return
        started = time.perf_counter()
        runs = [run.tolist() for run in np.split(np.array(experts), np.flatnonzero(np.diff(experts) > 1) + 1)]
        for address, size in self._matrices[layer]:
            for run in runs:
                start = (address + run[0] * size) // PAGE * PAGE
                address_space.expect_soon(start, address + (run[-1] + 1) * size - start)
        self.wait_seconds += time.perf_counter() - started


def _bytes_read() -> int:
    """Bytes that this process had read from storage so far; 0 where the system does not say."""
    with suppress(psutil.Error, OSError, RuntimeError):
        return int(psutil.Process().io_counters().read_bytes)
    return 0
