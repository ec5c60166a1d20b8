"""Whether the mirror of llama.cpp's choice of cells is right: each text's tokens lie in the order of their positions.

What llama.cpp saves of a sequence lists its cells in their order in the cache. With weights of zeros all that differs
between two cells is the position. So what it saves of a text in a slot must be what it saves of the text alone.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from specrun.llama.batch import committed_tokens, joined
from specrun.llama.context import ALL_SEQUENCES, ContextConfig, LlamaContext
from specrun.llama.facts import tiny_model
from specrun.llama.slot_cells import CellLedger, SlotCells, n_sequences
from specrun.llama_settings import LlamaSettings

_LEAVES = (2, 2, 1)
_PASSES = 40
_LONGEST = 40  # tokens of a text, from which on its slot is emptied


def check(settings: LlamaSettings) -> str | None:
    """Passes over a few texts at random, of which some tokens are rolled back; the cells of all texts after each."""
    settings = replace(settings, threads=1)
    config = ContextConfig(256, n_sequences(_LEAVES), 64, 1, settings, slots=_LEAVES)
    with (
        tiny_model.loaded(is_random=False) as model,
        LlamaContext(model, config) as context,
        LlamaContext(model, config) as alone,
    ):
        ledger = CellLedger(context, _LEAVES)
        rng = np.random.default_rng(0)
        for _ in range(_PASSES):
            _pass(ledger, rng)
            for slot in ledger.slots:
                if slot.cells and context.sequence_state(slot.first).tobytes() != _state_alone(alone, slot):
                    return "this llama.cpp puts tokens into other cells than specrun knows"
    return None


def _state_alone(context: LlamaContext, slot: SlotCells) -> bytes:
    """What llama.cpp saves of a text of the same length, in the order of its tokens, in an empty cache."""
    context.remove(ALL_SEQUENCES, 0)
    context.decode(committed_tokens([0] * len(slot.cells), 0, 1, 0, slot.first))
    return context.sequence_state(slot.first).tobytes()


def _pass(ledger: CellLedger, rng: np.random.Generator) -> None:
    """A pass over some of the texts, of which each then goes on from some earlier position."""
    for slot in ledger.slots:
        if len(slot.cells) > _LONGEST:
            slot.clear()
    chosen = [slot for slot in ledger.slots if rng.random() < 0.6] or [ledger.slots[0]]
    chosen.sort(key=lambda slot: slot.last)
    shares = [(slot, int(rng.integers(1, 7))) for slot in chosen]
    batches = [committed_tokens([0] * n, len(slot.cells), slot.max_leaves, 0, slot.first) for slot, n in shares]
    batch = joined(batches)
    with ledger.writing(batch, shares):
        ledger.context.decode(batch)
    for slot, n in shares:
        slot.rollback(len(slot.cells) - int(rng.integers(n + 1)))
