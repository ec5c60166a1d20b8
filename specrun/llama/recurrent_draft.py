"""The cache of a draft model with recurrent states: one drafted path, and back to the committed text for the next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specrun.llama.batch import committed_tokens, common_prefix
from specrun.llama.context import LlamaContext, Logits
from specrun.llama.draft import AnyDraft, SavedDraft
from specrun.llama.draft_tokens import SameTokens
from specrun.llama.rollback import CHECKPOINT, text_cache
from specrun.speculation.drafter import DraftNode
from specrun.speculation.tree import ROOT


class RecurrentDraft(AnyDraft):
    """The cache of a draft with recurrent states: the committed text, and the nodes of one path that were expanded.

    The checkpoint of the cache is the committed text. If the path was accepted as far as it was expanded, the cache
    goes on after it; else the accepted tokens are decoded again from the checkpoint on, in one pass with the root.

    vocabulary: as in `DraftContext`.
    """

    def __init__(self, context: LlamaContext, vocabulary: SameTokens) -> None:
        super().__init__(context, vocabulary.n_vocab)
        self.vocabulary = vocabulary
        self._cache = text_cache(context)  # it holds `_tokens`, here committed text and path
        self._expanded = [ROOT]  # the nodes of the path
        self._root_row: Logits | None = None  # the logits after the root, if nothing was expanded since

    def start(self, tokens: Sequence[int]) -> Logits:
        """See `DraftModel`."""
        if self._is_unfinished:
            self.reset()
        tokens = self.vocabulary.read(tokens)
        if self._root_row is not None and self._tokens == list(tokens):
            return self._root_row  # the state without the root is not there any more
        with self._changing():
            shared = common_prefix(self._tokens, tokens[:-1])
            if shared < len(self._tokens):
                shared = self._cache.rollback(shared)
            rows = None
            for begin in range(shared, len(tokens), self.context.config.n_batch):
                chunk = list(tokens[begin : begin + self.context.config.n_batch])
                is_last = begin + len(chunk) == len(tokens)
                rows = self.context.decode(committed_tokens(chunk, begin, 1, n_outputs=int(is_last)))
            assert rows is not None, "the root is never in the cache"
            self._cache.checkpoint(len(tokens))
            self._tokens = list(tokens)
            self._expanded = [ROOT]
            self._root_row = self.vocabulary.rows(rows)[0].copy()
        return self._root_row

    def n_unread(self, tokens: Sequence[int]) -> int:
        return super().n_unread(self.vocabulary.read(tokens))

    def rows_along(self, tokens: Sequence[int], skip: int) -> Iterator[Logits]:
        self.reset()
        return self.vocabulary.rows_along(self.context, tokens, skip)

    def reset(self) -> None:
        with self._changing():
            self._tokens = []
            self._expanded = [ROOT]
            self._root_row = None
            self._cache.clear()

    def save(self) -> SavedDraft | None:
        """As `DraftContext.save`: the text at the checkpoint."""
        n = self._cache.n_checkpoint
        if self._is_unfinished or not n:
            return None
        return SavedDraft(self._tokens[:n], 0, self.context.sequence_state(CHECKPOINT))

    def expandable(self, parents: Sequence[int], width: int) -> Sequence[int]:
        """See `DraftModel`: a node can be expanded if it continues the path."""
        config = self.context.config
        most = min(width, config.n_batch, config.n_outputs, config.n_ctx - len(self._tokens))
        closed = set(self._expanded[:-1])  # the path goes on after them already
        places: list[int] = []
        for place, parent in enumerate(parents):
            if len(places) < most and parent not in closed:
                closed.add(parent)
                places.append(place)
        return places

    def expand(self, nodes: Sequence[DraftNode]) -> Logits:
        """See `DraftModel`. Raises ValueError for nodes that do not continue the path."""
        for parent, node in zip([self._expanded[-1], *(node.id for node in nodes)], nodes, strict=False):
            if node.parent != parent:
                raise ValueError(f"node {node.id} does not continue the path")
        self._root_row = None
        path = [node.token for node in self.vocabulary.read_nodes(nodes)]
        with self._changing():
            rows = self.context.decode(committed_tokens(path, len(self._tokens), 1, n_outputs=len(path)))
            self._tokens += path
            self._expanded += [node.id for node in nodes]
        return self.vocabulary.rows(rows)
