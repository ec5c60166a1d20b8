"""MTP layers: further layers of the target that predict from its last state (multi-token prediction).

A cell at position p is of the token at p and the state behind the token at p - 1. A model may have several such layers,
each trained for a level of its own; llama.cpp computes the first unless told otherwise, and it drafts all levels here.
"""

from __future__ import annotations

from specrun.llama.context import LlamaContext
from specrun.llama.heads import bindings
from specrun.llama.heads.bindings import Floats
from specrun.llama.heads.head_context import HeadContext
from specrun.llama.heads.head_draft import HeadDraft
from specrun.llama.heads.target_states import Indices, TargetStates


class LastStates:
    """Reads the rows behind the target's last layer. Every pass computes that layer for all of its tokens then."""

    def __init__(self, target: LlamaContext) -> None:
        bindings.keep_states(target.handle, masked=False)
        self._target = target

    @property
    def width(self) -> int:
        return self._target.model.n_embd_out

    def rows(self, tokens: Indices) -> Floats:
        return bindings.states(self._target.handle, int(tokens.max()) + 1, self.width)[tokens]


def mtp_draft(context: HeadContext, target: LlamaContext, n_vocab: int) -> tuple[HeadDraft, TargetStates]:
    """The draft that the context of MTP layers is of, and the states that the target has to note for it.

    target: the target's context. n_vocab: as in `DraftContext`.
    """
    reader = LastStates(target)
    states = TargetStates(reader, None, context.config.n_batch, reader.width, context.config.n_ctx)
    return HeadDraft("mtp", context, states, n_vocab, skipped=0), states
