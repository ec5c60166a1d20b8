"""EAGLE-3 (arXiv 2503.01840): one layer that reads the states of three of the target's layers, fused into one.

Its cells lag one behind: a cell at position p is of the token at p + 1 and the fused state behind the token at p.
"""

from __future__ import annotations

import numpy as np

from specrun.llama.context import LlamaContext
from specrun.llama.heads import bindings
from specrun.llama.heads.bindings import Floats
from specrun.llama.heads.head_context import HeadContext
from specrun.llama.heads.head_draft import HeadDraft
from specrun.llama.heads.target_states import Indices, TargetStates


class LayerInputs:
    """Reads the rows that entered some of the target's layers, one behind the other.

    layers: which ones; row k of a layer is the state before it.
    """

    def __init__(self, target: LlamaContext, layers: tuple[int, ...], layer_width: int) -> None:
        bindings.keep_layer_inputs(target.handle, layers)
        self._target = target
        self._layers = layers
        self._layer_width = layer_width

    @property
    def width(self) -> int:
        return len(self._layers) * self._layer_width

    def rows(self, tokens: Indices) -> Floats:
        n = int(tokens.max()) + 1
        by_layer = [bindings.layer_inputs(self._target.handle, layer, n, self._layer_width) for layer in self._layers]
        return np.hstack([rows[tokens] for rows in by_layer])


def eagle3_draft(
    context: HeadContext, target: LlamaContext, layers: tuple[int, ...], n_vocab: int
) -> tuple[HeadDraft, TargetStates]:
    """The draft that an EAGLE-3 head's context is of, and the states that the target has to note for it.

    target: the target's context. layers: those of the target that the head reads. n_vocab: as in `DraftContext`.
    """
    reader = LayerInputs(target, layers, target.model.n_embd)
    states = TargetStates(reader, context.encode, context.config.n_batch, context.state_width, context.config.n_ctx)
    return HeadDraft("eagle3", context, states, n_vocab, skipped=1), states
