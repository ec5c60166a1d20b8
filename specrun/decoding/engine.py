"""The models that write a text, and those that write several texts in the same contexts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specrun.llama import AnyDraft, TargetContext
from specrun.llama.draft import SavedDraft
from specrun.llama.rollback import CachedText, SavedText
from specrun.speculation.sources.source_set import SourceSet
from specrun.speculation.tree import ROOT, TokenTree

# Dead cells from which the texts are moved together, if there are more of them than of the texts' own: each row of
# attention has to skip them, and llama.cpp reads cells in blocks of 256. Moving a text costs a copy of its cache.
_MANY_DEAD = 256


@dataclass(frozen=True, eq=False)
class SavedCaches:
    """A copy of a text as both models hold it, so that texts go on in turn without being read again.

    draft: None where nothing drafted, and for an assistant, which has no cache.
    """

    target: SavedText
    draft: SavedDraft | None

    @property
    def held(self) -> CachedText:
        """What the target holds."""
        return self.target.held

    @property
    def has_head_states(self) -> bool:
        """Whether there are the target's hidden states, without which a head cannot draft."""
        return self.target.for_head is not None

    @property
    def n_bytes(self) -> int:
        """Bytes of memory."""
        return self.target.n_bytes + (self.draft.state.nbytes if self.draft else 0)


@dataclass(eq=False)
class Engine:
    """A target and its draft, which write one text at a time (`Generation`)."""

    target: TargetContext
    draft: AnyDraft | None  # None without a draft model
    ctx_size: int  # most tokens of prompt and completion together. The contexts have further cells for a tree.
    sources: SourceSet | None = None  # for methods that use them; None: `Model.complete` decodes plainly

    def read_for_draft(self, tokens: Sequence[int]) -> None:
        """Let a head draft anywhere along a text that the target did not write just now: the target reads the text for
        its hidden states. A draft model needs nothing. The target's cache may be empty afterwards.
        """
        target = self.target
        if target.states:
            target.set_prompt(list(tokens))
            if not target.has_states:
                tree = TokenTree.root_only(tokens[-1])
                target.score(tree)
                target.commit(tree, [ROOT], tokens[-1])
            target.reset()

    def reset(self) -> None:
        """Empty both KV caches."""
        self.target.reset()
        if self.draft:
            self.draft.reset()

    @property
    def held(self) -> CachedText:
        """What the target holds."""
        return self.target.held()

    @property
    def has_head_states(self) -> bool:
        """As that of `SavedCaches`."""
        return self.target.states is not None

    @property
    def n_saved_bytes(self) -> int:
        """About the bytes that `save` would take now."""
        return self.target.n_saved_bytes + self.n_beside_bytes

    @property
    def n_beside_bytes(self) -> int:
        """About the bytes that it takes beside the target's cache."""
        states, draft = self.target.states, self.draft
        return (states.n_bytes if states else 0) + (draft.n_saved_bytes if draft else 0)

    def save(self, path: Path | None = None) -> SavedCaches | None:
        """A copy of what the caches hold between texts; None after a pass that failed. Raises LlamaError, and OSError.

        path: a file to which llama.cpp writes the target's cache; None for memory.
        """
        target = self.target.save(path)
        if target is None:
            return None
        return SavedCaches(target, self.draft.save() if self.draft else None)

    def restore(self, saved: SavedCaches) -> None:
        """Let the caches hold what this engine saved. Raises LlamaError."""
        self.target.restore(saved.target)
        if saved.draft and self.draft:
            self.draft.restore(saved.draft)


class Slots:
    """The engines that share contexts. The first has room for larger trees than the others.

    n_tokens: most tokens of all texts together.
    """

    def __init__(self, engines: Sequence[Engine], n_tokens: int | None = None) -> None:
        """n_tokens: None for as many as a single text may have."""
        self.engines = tuple(engines)
        self.n_tokens = n_tokens or self.engines[0].ctx_size
        slot = self.engines[0].target.slot
        self._ledger = slot.ledger if slot else None

    def has_room(self, n: int) -> bool:
        """Whether `n` cells are free. A text without others always has room: its context is large enough for it."""
        return self._ledger is None or self._ledger.n_free >= n

    def make_room(self, n: int) -> None:
        """Move the texts together if that gives `n` free cells which there are not, or if many cells are dead.

        Raises LlamaError if llama.cpp fails; then the texts are in no cache any more.
        """
        ledger = self._ledger
        if ledger is None:
            return
        n_alive = sum(engine.target.n_cached for engine in self.engines)
        if ledger.n_dead > max(n_alive, _MANY_DEAD) or ledger.n_free < n <= ledger.n_free + ledger.n_dead:
            targets = sorted((engine.target for engine in self.engines), key=lambda target: target.cells.last)
            with ledger.changing():
                ledger.free_dead()
                for target in targets:
                    target.move_down()
