"""The weights of a loaded model, of which some layers take turns in a ring and all others stay in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specrun.catalog.layer_states import PageRange, WeightPages
from specrun.errors import LlamaError
from specrun.hardware.fit import Residency, ResidencyPlan, relieved
from specrun.hardware.memory import Pressure
from specrun.llama import library
from specrun.llama.streaming.address_space import CannotStreamError, SlotMemory
from specrun.llama.streaming.gate import LayerGate
from specrun.llama.streaming.ring import Ring
from specrun.llama.streaming.weight_file import HeldPages, Request


class StreamedWeights(library.Closing):
    """Made for a model that llama.cpp has mapped. Close it after the context and before the model.

    plan: what is to be streamed.
    pressure: tells between passes whether the system runs short of memory. Resident layers are then streamed.

    paths: the model's files. layers: those in RAM, also resident ones. n_slots: in which layers take turns.

    Until `stream` is called, everything is as llama.cpp made it. The context must be made with `gate.callback`.
    Raises CannotStreamError if the files cannot be read or are not mapped, or if there is no memory.
    """

    def __init__(self, pages: WeightPages, plan: ResidencyPlan, pressure: Pressure) -> None:
        self.gate = LayerGate()
        self.paths, self.layers, self.n_slots = pages.files, list(range(len(pages.layers))), plan.n_slots
        self._pages = pages
        self._wanted = plan
        self._plan = relieved(plan, pages.layer_bytes, plan.resident_bytes)  # at first all layers are streamed
        self._pressure = pressure
        self._ring: Ring | None = None
        self._given_back = 0
        self._locked_slots = True
        self._slots = SlotMemory(plan.n_slots * plan.slot_bytes)
        every = [*pages.others, *(part for parts in pages.layers for part in parts)]
        try:
            self._memory = HeldPages(pages.files, every)
        except BaseException:
            self._slots.close()
            raise

    @property
    def residency(self) -> Residency:
        """How the weights are held now."""
        plan, locked = self._plan, self._locked_slots and self._memory.locked
        sizes = plan.resident_bytes, plan.streamed_bytes, plan.n_slots, plan.slot_bytes
        return Residency("ring", *sizes, locked, self._given_back) if self._ring else Residency()

    found = (0, 0)  # as that of `CachedExperts`

    @property
    def bytes_read(self) -> int:
        """Bytes that all passes so far have read, reading ahead included."""
        return self._ring.bytes_read if self._ring else 0

    @property
    def wait_seconds(self) -> float:
        """For how long all passes so far have waited for reads."""
        return self._ring.wait_seconds if self._ring else 0.0

    def stream(self, strictly: bool = False) -> None:
        """Stream what the plan says, and read ahead; everything else is put into memory that nothing evicts.

        strictly: let all layers take turns instead, each in memory only while it is computed (see `Ring`).
        Raises CannotStreamError, LlamaError or OSError if that fails; `close` then restores what llama.cpp made.
        """
        self._memory.begin()
        self._memory.pin(self._pages.others)
        self._arrange(self._plan if strictly else self._wanted, reads_ahead=not strictly)

    def begin_pass(self) -> None:
        """To be called before every pass. Raises LlamaError if memory that must be given back cannot be."""
        if shortage := self._pressure.shortage() if self._ring else 0:
            # Resident layers join the ring until so many bytes are free, as far as there are any.
            before, plan = self._plan.held_bytes, relieved(self._plan, self._pages.layer_bytes, shortage)
            try:
                if plan != self._plan:
                    self._arrange(plan, reads_ahead=True)
            except (CannotStreamError, OSError) as error:
                raise LlamaError(f"memory ran short, and resident weights cannot be given back: {error}") from error
            self._given_back += before - plan.held_bytes
        self.gate.begin_pass()

    def close(self) -> None:
        """End all reading and restore the mapping of the files. Safe to call twice."""
        if self._ring:
            self._ring.close()
        self._memory.close()
        self._slots.close()

    def _arrange(self, plan: ResidencyPlan, reads_ahead: bool = False) -> None:
        """Show slots of a new ring in place of the plan's streamed layers, and hold the others.

        A layer that was held is given back by that. If it fails midway, the next pass ends with an error.
        """
        if self._ring:
            self._ring.close()
        starts = [place % plan.n_slots * plan.slot_bytes for place in range(len(plan.streamed))]
        streamed = [self._pages.layers[layer] for layer in plan.streamed]
        # Layers give back what they held before slots take memory, of which there may be none to spare.
        for parts, start in zip(streamed, starts, strict=True):
            for part, offset in _placed(parts, start):
                self._memory.show(part, self._slots.descriptor, offset)
        if len(self._slots) != plan.n_slots * plan.slot_bytes:
            self._slots.resize(plan.n_slots * plan.slot_bytes)
        memory = memoryview(self._slots.mapping)
        requests: list[list[Request]] = [[] for _ in streamed]  # what has to be read so that a slot has a layer
        for asked, parts, start in zip(requests, streamed, starts, strict=True):
            for part, offset in _placed(parts, start):
                asked += self._memory.requests(part, memory[offset : offset + part.n_bytes])
        stays = [part for i, parts in enumerate(self._pages.layers) if i not in plan.streamed for part in parts]
        self._memory.pin(stays)
        self._ring = Ring(requests, plan.n_slots, self._memory.n_readers, self._ring)
        self.gate.guard(self._ring, plan.streamed)
        # Only now nothing refers to the slots of an earlier ring, so that locking these takes no further memory.
        self._locked_slots = self._slots.lock()
        self._plan = plan
        if reads_ahead:
            self._ring.read_ahead()


def _placed(parts: Sequence[PageRange], start: int) -> Iterator[tuple[PageRange, int]]:
    """The parts of a layer, each with its place in the slots' memory, of which `start` is the first."""
    for part in parts:
        yield part, start
        start += part.n_bytes
