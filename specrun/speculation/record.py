"""What one step did and took, for whoever learns from it."""

from __future__ import annotations

from dataclasses import dataclass

from specrun.speculation.sample_and_match import Accepted
from specrun.speculation.tree import TokenTree


@dataclass(frozen=True)
class PassRecord:
    """One step: its tree, what was accepted, and what it took.

    seconds: the whole step. target_seconds: its target pass, over `n_target` tokens (the tree, and committed ones that
    were decoded again) behind `ctx` cached ones. draft_seconds: all of the drafting.
    """

    tree: TokenTree
    accepted: Accepted
    seconds: float
    target_seconds: float = 0.0
    draft_seconds: float = 0.0
    n_target: int = 1
    ctx: int = 0

    @property
    def n_tokens(self) -> int:
        """Committed tokens."""
        return len(self.accepted.tokens)
