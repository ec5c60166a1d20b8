"""Whether a pass through the ring, or a cache of experts, gives the bits of one through llama.cpp's own mapping."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from specrun.catalog.gguf_file import file_identity
from specrun.errors import LlamaError, ModelFileError
from specrun.llama.batch import committed_tokens
from specrun.llama.context import ALL_SEQUENCES, LlamaContext, Logits
from specrun.llama.facts import refusal
from specrun.llama.streaming.address_space import CannotStreamError
from specrun.llama.streaming.cached_experts import CachedExperts
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
        # No other setting of the ring matters, as all layers stream while it is found; those in VRAM never do.
        ring = {"slots": weights.n_slots, "layers": weights.n_layers}
        if refused := _once("streaming", context, weights.paths, lambda: computed_otherwise(context, weights), **ring):
            raise CannotStreamError(refused)
        weights.stream()
    except (LlamaError, ModelFileError, OSError) as error:
        raise CannotStreamError(f"reading ahead failed ({error})") from error


def read_experts(context: LlamaContext, weights: ExpertWeights) -> None:
    """Let experts be read as they are chosen, under a context that was made with their gate.

    Raises CannotStreamError if that is impossible; the weights are then to be closed. The bits are compared, once for a
    file, if the experts leave llama.cpp's own mapping.
    """
    try:
        if isinstance(weights, CachedExperts):
            _once("experts", context, weights.paths, lambda: _check_cache(context, weights), layers=weights.layers)
        else:
            _with_choices(context, weights)
        weights.stream()
    except (LlamaError, ModelFileError, OSError) as error:
        raise CannotStreamError(f"reading them failed ({error})") from error


def _check_cache(context: LlamaContext, weights: CachedExperts) -> None:
    """Compare passes through llama.cpp's mapping and through a cache that has nothing but what a layer just chose."""
    reference = _with_choices(context, weights)
    weights.stream(strictly=True)
    if _logits(context).tobytes() != reference.tobytes():
        raise CannotStreamError("this llama.cpp gave other logits with experts in memory of specrun's own")


def _with_choices(context: LlamaContext, weights: ExpertWeights) -> Logits:
    """The logits, if llama.cpp tells which experts it chooses for them."""
    logits = _logits(context)
    if weights.gate.layers != weights.layers:
        raise CannotStreamError("this llama.cpp does not tell which experts it chose")
    return logits


def _once(
    check: str, context: LlamaContext, paths: Sequence[Path], find_out: Callable[[], str | None], **further: Any
) -> str:
    """Why a check of a model with this cache failed, by an earlier run or now; empty if it passed."""
    settings = context.config.settings
    attention = [settings.flash_attn, settings.type_k, settings.type_v]
    return refusal(check, _VERSION, find_out, files=file_identity(paths), attention=attention, **further)


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
