"""The weights of a mixture: what every token uses stays in memory, and experts are read when a router has chosen them.

Experts stay in llama.cpp's mapping of the file, so that the page cache keeps as many of them as there is room for. But
a page fault reads either a page, or with read-ahead its neighbours too, which belong to experts that nobody chose.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

from specrun.catalog.expert_pages import ExpertPages
from specrun.catalog.weight_pages import PageRange, n_bytes
from specrun.hardware.residency import Residency, RingSettings
from specrun.llama.streaming import address_space
from specrun.llama.streaming.expert_gate import ExpertGate
from specrun.llama.streaming.held_pages import HeldPages

_IO = Path("/proc/self/io")


class ExpertWeights:
    """Made for a mixture that llama.cpp has mapped. Close it after the context and before the model.

    n_used: experts of a layer that a token uses.
    wait_seconds: for how long passes have asked for experts; how long page faults then wait for them is not known.

    Until `stream` is called, everything is as llama.cpp made it. The
    context must be made with `gate.callback`. Raises CannotStreamError if the files cannot be read or are not mapped.
    """

    def __init__(self, pages: ExpertPages, n_used: int, settings: RingSettings) -> None:
        self.gate = ExpertGate(pages.n_experts, n_used, self._read)
        self.wait_seconds = 0.0
        self._pages = pages
        self._is_streaming = False
        self._read_before = _bytes_read()
        self._memory = HeldPages(pages.files, [*pages.experts, *pages.dense], settings)

    @property
    def layers(self) -> list[int]:
        """The layers that have experts."""
        return list(self._pages.layers)

    @property
    def residency(self) -> Residency:
        """How the weights are held."""
        if not self._is_streaming:
            return Residency()
        dense, experts = n_bytes(self._pages.dense), n_bytes(self._pages.experts)
        return Residency("experts", dense, experts, locked=self._memory.locked)

    @property
    def bytes_read(self) -> int:
        """Bytes that this process had read from storage since this was made."""
        return _bytes_read() - self._read_before

    def stream(self) -> None:
        """Hold what every token uses, and from the next pass on read experts as they are chosen.

        Raises CannotStreamError, LlamaError or OSError if that fails; `close` then restores what llama.cpp made.
        """
        if self._memory.begin():
            for part in self._pages.experts:
                address_space.expect_any_order(self._memory.address_of(part), part.n_bytes)
            self._memory.hold(self._pages.dense)
        self._is_streaming = True

    def begin_pass(self) -> None:
        """To be called before every pass. Raises LlamaError if a file was cut short, before page faults find out."""
        self._memory.check_length()
        self.gate.begin_pass()

    def close(self) -> None:
        """End all reading and restore the mapping of the files. Safe to call twice."""
        self._is_streaming = False
        self._memory.close()

    def __enter__(self) -> ExpertWeights:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, layer: int, experts: list[int]) -> None:
        """Begin to read these experts of a layer; page faults wait for what is still on its way."""
        if not self._is_streaming:
            return
        started = time.perf_counter()
        for tensor in self._pages.layers.get(layer, ()):
            for part in tensor.pages_of(experts, address_space.PAGE):
                address_space.expect_soon(self._address_of(part), part.n_bytes)
        self.wait_seconds += time.perf_counter() - started

    def _address_of(self, part: PageRange) -> int:
        whole = next(one for one in self._pages.experts if one.file == part.file and part.offset < one.end)
        return self._memory.address_of(whole) + part.offset - whole.offset


def _bytes_read() -> int:
    """Bytes that this process had read from storage so far; 0 where the system does not say."""
    try:
        found = re.search(r"^read_bytes: (\d+)$", _IO.read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0
