"""The record of one pass, from which calibrations and cost tables are updated."""

from __future__ import annotations

from dataclasses import dataclass

from specrun.speculation.sample_and_match import Accepted
from specrun.speculation.tree import TokenTree


@dataclass(frozen=True)
class PassRecord:
    """One target pass with the drafting before it and the acceptance after it."""

    tree: TokenTree
    accepted: Accepted
    seconds: float  # of everything
    target_seconds: float = 0.0  # of the target pass
    draft_seconds: float = 0.0  # of the drafting
    n_target: int = 1  # tokens of the target pass: tree, committed tokens that were decoded again, and padding
    ctx: int = 0  # tokens that the target had in its cache before the pass

    @property
    def n_tokens(self) -> int:
        """Number of committed tokens."""
        return len(self.accepted.tokens)
