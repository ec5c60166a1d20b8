"""Heads that draft a level of the tree in each pass: EAGLE-3 heads and MTP layers.

EAGLE-3 (arXiv 2503.01840) is one layer that reads the states of three of the target's layers, fused into one. Its cells
lag one behind: a cell at position p is of the token at p + 1 and the fused state behind the token at p.

MTP layers (multi-token prediction) are further layers of the target that predict from its last state. A cell at
position p is of the token at p and the state behind the token at p - 1. A model may have several such layers, each
trained for a level of its own; llama.cpp computes the first unless told otherwise, and it drafts all levels here.
"""

from __future__ import annotations

from specrun.llama.context import LlamaContext
from specrun.llama.heads.head_context import HeadContext
from specrun.llama.heads.head_draft import HeadDraft
from specrun.llama.heads.target_states import TargetStates, last_states, layer_inputs


def eagle3_draft(
    context: HeadContext, target: LlamaContext, layers: tuple[int, ...], n_vocab: int
) -> tuple[HeadDraft, TargetStates]:
    """The draft that an EAGLE-3 head's context is of, and the states that the target has to note for it.

    target: the target's context. layers: the layers of the target that the head reads. n_vocab: as in `DraftContext`.
    """
    reader = layer_inputs(target, layers)
    states = TargetStates(reader, context.encode, context.config.n_batch, context.state_width, context.config.n_ctx)
    return HeadDraft("eagle3", context, states, n_vocab, skipped=1), states


def mtp_draft(context: HeadContext, target: LlamaContext, n_vocab: int) -> tuple[HeadDraft, TargetStates]:
    """The same for MTP layers, which read the target's last states."""
    reader = last_states(target)
    states = TargetStates(reader, None, context.config.n_batch, reader.width, context.config.n_ctx)
    return HeadDraft("mtp", context, states, n_vocab, skipped=0), states
