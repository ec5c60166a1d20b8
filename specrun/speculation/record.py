"""The record of one pass, from which calibrations and cost tables are updated."""

from __future__ import annotations

from dataclasses import dataclass

from specrun.speculation.drafter import Draft
from specrun.speculation.sample_and_match import Accepted
from specrun.speculation.tree import TokenTree


@dataclass(frozen=True)
class PassRecord:
    """One target pass with the drafting before it and the acceptance after it."""

    draft: Draft
    accepted: Accepted
    seconds: float  # of everything but the drafting for other texts in the same pass
    target_seconds: float = 0.0
    draft_seconds: float = 0.0
    n_target: int = 1  # tokens of the target pass: all trees, committed tokens that were decoded again, and padding
    ctx: int = 0  # tokens that the target had in its cache before the pass
    n_texts: int = 1  # texts that the pass had tokens of

    @property
    def tree(self) -> TokenTree:
        return self.draft.tree

    @property
    def n_tokens(self) -> int:
        """Number of committed tokens."""
        return len(self.accepted.tokens)
