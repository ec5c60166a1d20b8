"""Whether a pass through the ring gives the same bits as one through llama.cpp's own mapping."""

from __future__ import annotations

import numpy as np

from specrun.errors import LlamaError
from specrun.llama.batch import committed_tokens
from specrun.llama.context import ALL_SEQUENCES, LlamaContext, Logits
from specrun.llama.streaming.refusal import CannotStreamError
from specrun.llama.streaming.streamed_weights import StreamedWeights

_N_TOKENS = 4  # of the passes that are compared


def stream(context: LlamaContext, weights: StreamedWeights) -> None:
    """Install the ring under a context that was made with its gate, and let it read ahead if it gives the same bits.

    Takes two passes, one through the mapping and one through the ring. In the second one a layer's memory holds its
    weights only between the outputs of the layer before and of itself, so that a model which uses them at any other
    time differs. Raises CannotStreamError if the ring cannot be used; the weights are then to be closed.
    """
    reference = _logits(context)
    if weights.gate.layers != list(range(weights.n_layers)):
        raise CannotStreamError("llama.cpp does not compute this model layer by layer")
    try:
        weights.install()
        through_ring = _logits(context)
    except (LlamaError, OSError) as error:
        raise CannotStreamError(f"reading ahead failed ({error})") from error
    if through_ring.tobytes() != reference.tobytes():
        raise CannotStreamError("this llama.cpp gave other logits with streamed weights")
    weights.read_ahead()


def _logits(context: LlamaContext) -> Logits:
    """The logits after a few tokens in an empty cache, which is empty again afterwards."""
    tokens = [i % context.model.n_vocab for i in range(_N_TOKENS)]
    try:
        rows = context.decode(committed_tokens(tokens, 0, n_seq=1, n_outputs=1))
        return np.array(rows)
    finally:
        context.remove(ALL_SEQUENCES, 0)
