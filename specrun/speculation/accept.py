"""Accepting a path of a token tree: by sample and match, or by a rule of a paper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specrun.sampling import Sampler
from specrun.speculation.drafter import Draft
from specrun.speculation.sample_and_match import Accepted, sample_and_match


class AcceptanceRule(Protocol):
    """A rule that compares the target's distribution with the draft's; they are in `specrun.speculation.papers`."""

    @property
    def lossless(self) -> bool:
        """Whether the text is distributed as the target's."""
        ...

    def accept(self, draft: Draft, rows: NDArray[np.float32], sampler: Sampler, tokens: Sequence[int]) -> Accepted:
        """The accepted path of the draft's tree; arguments as in `accept`."""
        ...


def accept(
    rule: AcceptanceRule | None, draft: Draft, rows: NDArray[np.float32], sampler: Sampler, tokens: Sequence[int]
) -> Accepted:
    """The accepted path of the draft's tree, and the tokens that it commits.

    rule: the rule at temperatures above 0; None is sample and match. Greedily all rules do the same.
    rows: float32[len(tree), n_vocab], the target's logits after each node.
    tokens: all committed text, whose last token is the root.
    """
    if rule is None or sampler.parameters.temperature == 0:
        return sample_and_match(draft.tree, rows, sampler.sample, len(tokens), sampler.recent(tokens))
    return rule.accept(draft, rows, sampler, tokens)
