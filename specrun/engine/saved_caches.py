"""Copies of both KV caches in memory, so that several texts can go on in turn without being read again."""

from __future__ import annotations

from dataclasses import dataclass

from specrun.engine.engine import Engine
from specrun.llama import DraftContext
from specrun.llama.draft import SavedDraft
from specrun.llama.rollback import HeldText, SavedText


@dataclass(frozen=True, eq=False)
class SavedCaches:
    """A text as both models hold it."""

    target: SavedText
    # None without a draft model, and for a head or a draft with recurrent layers, which read the text again.
    draft: SavedDraft | None

    @property
    def held(self) -> HeldText:
        """What the target holds."""
        return self.target.held

    @property
    def n_bytes(self) -> int:
        """Bytes of memory."""
        return self.target.n_bytes + (self.draft.state.nbytes if self.draft else 0)


def size(engine: Engine) -> int:
    """About the bytes that `save` would take now."""
    draft = engine.draft.n_saved_bytes if isinstance(engine.draft, DraftContext) else 0
    return engine.target.n_saved_bytes + draft


def save(engine: Engine) -> SavedCaches | None:
    """A copy of what the caches hold between texts; None after a pass that failed. Raises LlamaError."""
    target = engine.target.save()
    if target is None:
        return None
    return SavedCaches(target, engine.draft.save() if isinstance(engine.draft, DraftContext) else None)


def restore(engine: Engine, saved: SavedCaches) -> None:
    """Let the caches of the same engine hold what was saved. Raises LlamaError."""
    engine.target.restore(saved.target)
    if saved.draft and isinstance(engine.draft, DraftContext):
        engine.draft.restore(saved.draft)
