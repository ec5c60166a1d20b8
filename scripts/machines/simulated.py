"""Runs specrun's code while its clock goes by the tables of a simulated machine."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import llama_cpp
import numpy as np

from machines.tables import Machine
from specrun import clock
from specrun.llama.batch import Batch
from specrun.llama.rollback import TextCache
from specrun.llama.slot_cells import CellLedger
from specrun.loading import placing

TARGET_NAME, DRAFT_NAME = "specrun demo target", "simulated draft"  # `general.name` in the files
STEP_MS = 0.3  # of specrun's own work in a pass
_WRITING = CellLedger.writing


class SimulatedClock:
    """A clock that goes on only by what passes take.

    noise: standard deviation of the natural logarithm of a pass's time. drift: by how much passes become slower for
    each minute.
    """

    def __init__(self, machine: Machine, noise: float = 0.0, drift: float = 0.0, seed: int = 0) -> None:
        self.seconds = 0.0
        self.passes: list[tuple[int, int, bool]] = []  # tokens, tokens in the cache before, and whether of the draft
        self._machine, self._noise, self._drift = machine, noise, drift
        self._rng = np.random.default_rng(seed)
        self._decode = llama_cpp.llama_decode
        self._ctx: int | None = None  # tokens in the cache before a pass over several texts

    def now(self) -> float:
        return self.seconds

    def decode(self, context: ctypes.c_void_p, batch: llama_cpp.llama_batch) -> int:
        """Make the real pass, and let the time pass that it would take on this machine. Trials of single kernels, with
        models that are made for them, take no time.
        """
        code = int(self._decode(context, batch))
        name = _name(llama_cpp.llama_get_model(context))
        if name in (TARGET_NAME, DRAFT_NAME):
            is_draft = name == DRAFT_NAME
            ctx = int(batch.pos[0]) if is_draft or self._ctx is None else self._ctx
            ms = self._machine.ms(int(batch.n_tokens), ctx, is_draft)
            ms *= float(np.exp(self._noise * self._rng.standard_normal())) * (1 + self._drift * self.seconds / 60)
            self.seconds += (ms + (0.0 if is_draft else STEP_MS)) / 1e3
            self.passes.append((int(batch.n_tokens), ctx, is_draft))
        return code

    @contextmanager
    def writing(self, ledger: CellLedger, batch: Batch, shares: Sequence[tuple[TextCache, int]]) -> Iterator[None]:
        """Around a pass over several texts, each of which has tokens of its own in the cache."""
        firsts = np.cumsum([0, *(n for _, n in shares)])[:-1]
        self._ctx = int(batch.positions[firsts].sum())
        try:
            with _WRITING(ledger, batch, shares):
                yield
        finally:
            self._ctx = None


def _name(model: int | None) -> str:
    """The `general.name` of a model, by which its passes are known."""
    name = ctypes.create_string_buffer(64)
    llama_cpp.llama_model_meta_val_str(model, b"general.name", name, len(name))
    return name.value.decode()


@contextmanager
def simulated(machine: Machine, noise: float = 0.0, drift: float = 0.0) -> Iterator[SimulatedClock]:
    """Inside the block passes take as long as on this machine, by the package's own clock."""
    simulation = SimulatedClock(machine, noise, drift)
    with (
        patch.object(clock, "now", simulation.now),
        patch.object(llama_cpp, "llama_decode", simulation.decode),
        patch.object(CellLedger, "writing", lambda *given: simulation.writing(*given)),
        patch.object(placing, "first_guesses", lambda *_: machine.guesses),
    ):
        yield simulation
