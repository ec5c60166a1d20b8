"""Whether a pass through the ring gives the same bits as one through llama.cpp's own mapping."""

from __future__ import annotations

from specrun.errors import LlamaError
from specrun.llama.batch import committed_tokens
from specrun.llama.context import ALL_SEQUENCES, LlamaContext, Logits
from specrun.llama.known_checks import KnownCheck, identity
from specrun.llama.streaming.address_space import CannotStreamError
from specrun.llama.streaming.expert_weights import ExpertWeights
from specrun.llama.streaming.streamed_weights import StreamedWeights

_VERSION = 1  # of the check, the ring and the gate; raise it when one of them changes
_N_TOKENS = 4  # of the passes that are compared


def stream(context: LlamaContext, weights: StreamedWeights) -> None:
    """Stream weights under a context that was made with their gate, if that gives the same bits.

    The first time that a file is used with this llama.cpp, two passes check it. Raises CannotStreamError if the weights
    cannot be streamed; they are then to be closed.
    """
    try:
        settings = context.config.settings
        known = KnownCheck(  # no other setting of the ring matters, as all layers stream while it is found
            "streaming",
            _VERSION,
            files=[identity(path) for path in weights.paths],
            attention=[settings.flash_attn, settings.type_k, settings.type_v],
            slots=weights.n_slots,
            layers=weights.n_layers,  # in RAM, as none is streamed of those in VRAM
        )
        refusal = known.refusal()
        if refusal is None:
            refusal = computed_otherwise(context, weights) or ""
            known.keep(refusal)
        if refusal:
            raise CannotStreamError(refusal)
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


def computed_otherwise(context: LlamaContext, weights: StreamedWeights) -> str | None:
    """Why llama.cpp computes this model in another way than streaming needs; None if it does not.

    One pass goes through llama.cpp's mapping and one through the ring, in which all layers take turns. In the second
    one a layer's memory holds its weights only between the outputs of the layer before and of itself, so that a model
    which uses them at any other time differs.

    Raises CannotStreamError for other bits. Unlike the order of the layers, they may come from a fault of the disk or
    of the memory, so they are looked for again at the next load.
    """
    reference = _logits(context)
    if weights.gate.layers[: weights.n_layers] != list(range(weights.n_layers)):
        return "llama.cpp does not compute this model layer by layer"
    weights.stream(strictly=True)
    if _logits(context).tobytes() != reference.tobytes():
        raise CannotStreamError("this llama.cpp gave other logits with streamed weights")
    return None


def _logits(context: LlamaContext) -> Logits:
    """The logits after a few tokens in an empty cache, which is empty again afterwards."""
    tokens = [i % context.model.n_vocab for i in range(_N_TOKENS)]
    try:
        return context.decode(committed_tokens(tokens, 0, n_seq=1, n_outputs=1)).copy()
    finally:
        context.remove(ALL_SEQUENCES, 0)
