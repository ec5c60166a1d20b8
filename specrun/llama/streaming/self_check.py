"""Whether a pass through the ring, or a cache of experts, gives the bits of one through llama.cpp's own mapping."""

from __future__ import annotations

from specrun.catalog.gguf_file import file_identity
from specrun.errors import LlamaError, ModelFileError
from specrun.llama.batch import committed_tokens
from specrun.llama.context import ALL_SEQUENCES, LlamaContext, Logits
from specrun.llama.facts import refusal
from specrun.llama.streaming.address_space import CannotStreamError
from specrun.llama.streaming.cached_experts import CachedExperts
from specrun.llama.streaming.streamed_weights import StreamedWeights

_VERSION = 2  # of the check, the ring, the cache and the gates; raise it when one of them changes
_N_TOKENS = 4  # of the passes that are compared


def stream(context: LlamaContext, weights: StreamedWeights | CachedExperts) -> None:
    """Stream weights under a context that was made with their gate, if that gives the same bits.

    The first time that a file is used with this llama.cpp, two passes check it. Raises CannotStreamError if the weights
    cannot be streamed; they are then to be closed.
    """
    settings = context.config.settings
    attention = [settings.flash_attn, settings.type_k, settings.type_v]
    # No other setting of the ring matters, as all layers stream while it is found; those in VRAM never do.
    ring = {"slots": weights.n_slots, "layers": weights.layers}
    try:
        of = {"files": file_identity(weights.paths), "attention": attention, **ring}
        if refused := refusal("streaming", _VERSION, lambda: computed_otherwise(context, weights), **of):
            raise CannotStreamError(refused)
        weights.stream()
    except (LlamaError, ModelFileError, OSError) as error:
        raise CannotStreamError(f"reading ahead failed ({error})") from error


def computed_otherwise(context: LlamaContext, weights: StreamedWeights | CachedExperts) -> str | None:
    """Why llama.cpp computes this model in another way than streaming needs; None if it does not.

    One pass goes through llama.cpp's mapping and one through the ring, in which all layers take turns, or through a
    cache that has nothing but what a layer just chose. In the second one memory holds weights only while their layer is
    computed, so that a model which uses them at any other time differs.

    Raises CannotStreamError for other bits. Unlike the order of the layers, they may come from a fault of the disk or
    of the memory, so they are looked for again at the next load.
    """
    reference = _logits(context)
    if weights.gate.layers[: len(weights.layers)] != weights.layers:
        return f"llama.cpp does not {weights.gate.needs}"
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
