"""Whether a pass through the ring gives the same bits as one through llama.cpp's own mapping."""

from __future__ import annotations

import numpy as np

from specrun.errors import LlamaError
from specrun.llama.batch import committed_tokens
from specrun.llama.context import ALL_SEQUENCES, LlamaContext, Logits
from specrun.llama.streaming.expert_weights import ExpertWeights
from specrun.llama.streaming.known_checks import KnownCheck
from specrun.llama.streaming.refusal import CannotStreamError
from specrun.llama.streaming.streamed_weights import StreamedWeights

_N_TOKENS = 4  # of the passes that are compared


def stream(context: LlamaContext, weights: StreamedWeights) -> None:
    """Stream weights under a context that was made with their gate, if that gives the same bits.

    The first time that a file is used with this llama.cpp, two passes check it. Raises CannotStreamError if the weights
    cannot be streamed; they are then to be closed.
    """
    try:
        known = KnownCheck(weights.paths, context.config.settings, weights.n_slots)
        if known.refusal:
            raise CannotStreamError(known.refusal)
        if not known.is_passed:
            _check(context, weights, known)
        weights.stream()
    except (LlamaError, OSError) as error:
        raise CannotStreamError(f"reading ahead failed ({error})") from error


def read_experts(context: LlamaContext, weights: ExpertWeights) -> None:
    """Let experts be read as they are chosen, under a context that was made with their gate.

    Raises CannotStreamError if that is impossible; the weights are then to be closed. The bits are not compared,
    because the experts stay in llama.cpp's own mapping.
    """
    try:
        _logits(context)
        if weights.gate.layers != weights.layers:
            raise CannotStreamError("this llama.cpp does not tell which experts it chose")
        weights.stream()
    except (LlamaError, OSError) as error:
        raise CannotStreamError(f"reading them failed ({error})") from error


def _check(context: LlamaContext, weights: StreamedWeights, known: KnownCheck) -> None:
    """One pass through llama.cpp's mapping and one through the ring, in which all layers take turns.

    In the second one a layer's memory holds its weights only between the outputs of the layer before and of itself, so
    that a model which uses them at any other time differs. Which layers will stay in memory makes no difference then.

    What is kept of it: that the bits were the same, and that llama.cpp computes the model in another order, as both
    depend only on what the check is known by. Other bits may also come from a fault of the disk or of the memory, and
    reading may fail for a while only, so those are tried again.
    """
    reference = _logits(context)
    if weights.gate.layers != list(range(weights.n_layers)):
        refusal = "llama.cpp does not compute this model layer by layer"
        known.keep(refusal)
        raise CannotStreamError(refusal)
    weights.stream_all_strictly()
    if _logits(context).tobytes() != reference.tobytes():
        raise CannotStreamError("this llama.cpp gave other logits with streamed weights")
    known.keep()


def _logits(context: LlamaContext) -> Logits:
    """The logits after a few tokens in an empty cache, which is empty again afterwards."""
    tokens = [i % context.model.n_vocab for i in range(_N_TOKENS)]
    try:
        rows = context.decode(committed_tokens(tokens, 0, n_seq=1, n_outputs=1))
        return np.array(rows)
    finally:
        context.remove(ALL_SEQUENCES, 0)
