"""Gemma 4's assistant: a head without a cache of its own, which reads the KV cache of the target.

Its layers attend to what two of the target's layers have cached of the text: the last one, and the one before it, which
has a window. It writes no cells. So a drafted node knows the nodes above it by the assistant's own state after its
parent alone, and all nodes of a tree are read at one place, after the cached text, as in llama.cpp's own tools. That
makes a level of any width one pass, without sequences.

Committed tokens that the target's next pass decodes again (`specrun.llama.target`) are not in the cache yet, and are
not seen: drafts are a little worse there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specrun.llama.batch import Floats, drafted_nodes, readable
from specrun.llama.context import HeadSetup, LlamaContext, Logits
from specrun.llama.draft import AnyDraft
from specrun.llama.heads import hidden_states
from specrun.llama.heads.hidden_states import TargetStates
from specrun.llama.target import TargetContext
from specrun.speculation.drafter import DraftNode
from specrun.speculation.method import HeadKind
from specrun.speculation.tree import ROOT

_TEXT = 0  # the sequence of the target's context that has all of the cached text


class AssistantDraft(AnyDraft):
    """An assistant as a draft. n_vocab: as in `DraftContext`. states: those that the target has to note."""

    kind: HeadKind = "mtp"

    def __init__(self, context: LlamaContext, setup: HeadSetup, target: TargetContext, n_vocab: int) -> None:
        hidden_states.keep(context.handle, masked=True)
        super().__init__(context, n_vocab)
        self.states = TargetStates(setup.target, (), context.config, setup.state_width)
        self._target = target
        self._position = 0  # of all nodes: that after the cached text
        self._behind: dict[int, Floats] = {}  # node that can get children -> the assistant's state after it

    def start(self, tokens: Sequence[int]) -> Logits:
        """See `DraftModel`. Where the target does not hold this text, as while acceptance is measured, it reads it. A
        text of one token gets equal logits, and nothing can be expanded: there is nothing in the cache to attend to.
        """
        self._behind = {}
        text = list(tokens)
        if self._target.tokens != text:
            before = self._target.context.decode_seconds
            self._target.set_prompt(text)
            self.context.decode_seconds += self._target.context.decode_seconds - before
        self._position = self._target.n_cached
        if self._position == 0:
            return np.zeros(self.n_vocab, np.float32)
        state = self.states.of(text, len(text) - 2, len(text) - 1)
        return self._read([ROOT], text[-1:], state)[0]

    def _read(self, ids: Sequence[int], tokens: Sequence[int], states: NDArray[np.floating]) -> Logits:
        """float32[n, n_vocab]: the logits after nodes, whose states are noted. states: those after their parents."""
        n = len(ids)
        batch = drafted_nodes(readable(tokens, self.n_vocab), [self._position] * n, [_TEXT] * n, states)
        rows = self.context.decode(batch)
        behind = hidden_states.kept(self.context.handle, n, self.context.model.n_embd_out).copy()
        self._behind.update(zip(ids, behind, strict=True))
        return rows[:, : self.n_vocab]

    def n_unread(self, tokens: Sequence[int]) -> int:
        """The root alone, since the target's cache has the rest."""
        return min(len(tokens), 1)

    @property
    def n_saved_bytes(self) -> int:
        return 0

    def reset(self) -> None:
        """Forget all nodes."""
        self._behind = {}

    def expandable(self, parents: Sequence[int], width: int) -> Sequence[int]:
        """See `DraftModel`: only nodes whose parents were expanded in earlier passes can be expanded. llama.cpp wants a
        free cell for each token of a pass, though it leaves them free.
        """
        config = self.context.config
        n_free = self._target.context.config.n_ctx - self._target.cells.n_elsewhere - self._position
        most = min(width, config.n_batch, config.n_outputs, n_free)
        return [place for place, parent in enumerate(parents) if parent in self._behind][: max(most, 0)]

    def expand(self, nodes: Sequence[DraftNode]) -> Logits:
        """See `DraftModel`. The parents must have been expanded in earlier passes, or be the root."""
        states = np.stack([self._behind[node.parent] for node in nodes])
        return self._read([node.id for node in nodes], [node.token for node in nodes], states)
