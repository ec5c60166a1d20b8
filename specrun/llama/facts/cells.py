"""Whether the mirror of llama.cpp's choice of cells is right: each text's tokens lie in the order of their positions.

What llama.cpp saves of a sequence lists its cells in their order in the cache. With weights of zeros all that differs
between two cells is the position. So what it saves of a text in a lane must be what it saves of the text alone.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from specrun.llama.batch import committed_tokens, joined
from specrun.llama.context import ALL_SEQUENCES, ContextConfig, LlamaContext
from specrun.llama.facts import tiny_model
from specrun.llama.lane_cells import CellLedger, LaneCells, n_sequences
from specrun.llama_settings import LlamaSettings

_LEAVES = (2, 2, 1)
_PASSES = 40
_LONGEST = 40  # tokens of a text, from which on its lane is emptied


def check(settings: LlamaSettings) -> str | None:
    """Passes over a few texts at random, of which some tokens are rolled back; the cells of all texts after each."""
    settings = replace(settings, threads=1)
    config = ContextConfig(256, n_sequences(_LEAVES), 64, 1, settings, lanes=_LEAVES)
    with (
        tiny_model.loaded(is_random=False) as model,
        LlamaContext(model, config) as context,
        LlamaContext(model, config) as alone,
    ):
        ledger = CellLedger(context, _LEAVES)
        rng = np.random.default_rng(0)
        for _ in range(_PASSES):
            _pass(ledger, rng)
            for lane in ledger.lanes:
                if lane.cells and context.sequence_state(lane.first).tobytes() != _state_alone(alone, lane):
                    return "this llama.cpp puts tokens into other cells than specrun knows"
    return None


def _state_alone(context: LlamaContext, lane: LaneCells) -> bytes:
    """What llama.cpp saves of a text of the same length, in the order of its tokens, in an empty cache."""
    context.remove(ALL_SEQUENCES, 0)
    context.decode(committed_tokens([0] * len(lane.cells), 0, 1, 0, lane.first))
    return context.sequence_state(lane.first).tobytes()


def _pass(ledger: CellLedger, rng: np.random.Generator) -> None:
    """A pass over some of the texts, of which each then goes on from some earlier position."""
    for lane in ledger.lanes:
        if len(lane.cells) > _LONGEST:
            lane.clear()
    chosen = [lane for lane in ledger.lanes if rng.random() < 0.6] or [ledger.lanes[0]]
    chosen.sort(key=lambda lane: lane.last)
    shares = [(lane, int(rng.integers(1, 7))) for lane in chosen]
    batches = [committed_tokens([0] * n, len(lane.cells), lane.max_leaves, 0, lane.first) for lane, n in shares]
    batch = joined(batches)
    with ledger.writing(batch, shares):
        ledger.context.decode(batch)
    for lane, n in shares:
        lane.rollback(len(lane.cells) - int(rng.integers(n + 1)))
