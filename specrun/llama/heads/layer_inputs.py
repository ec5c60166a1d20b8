"""The rows that enter some of the target's layers."""

from __future__ import annotations

import numpy as np

from specrun.llama.context import LlamaContext
from specrun.llama.heads import bindings
from specrun.llama.heads.bindings import Floats
from specrun.llama.heads.target_states import Indices


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
