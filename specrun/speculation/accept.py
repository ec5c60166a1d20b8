"""Accepting a path of a token tree by the rule of the plan's method."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specrun.sampling import Sampler
from specrun.sampling.noise import fresh
from specrun.speculation.plan import Plan
from specrun.speculation.sample_and_match import Accepted, sample_and_match
from specrun.speculation.tree import TokenTree


def accept(plan: Plan, tree: TokenTree, rows: NDArray[np.float32], sampler: Sampler, tokens: Sequence[int]) -> Accepted:
    """The accepted path of `tree` and the tokens that it commits.

    rows: float32[len(tree), n_vocab], the target's logits after each node.
    tokens: all committed text, whose last token is the root.
    """
    rule = plan.method.accept
    recent = sampler.recent(tokens)
    if rule is None or sampler.parameters.temperature == 0:
        return sample_and_match(tree, rows, sampler.sample, len(tokens), recent)

    def probabilities(node: int, committed: Sequence[int]) -> NDArray[np.float64]:
        return sampler.distribution(rows[node], [*recent, *committed]).dense(sampler.n_vocab)

    proposals = tree.proposals or (None,) * len(tree)
    return rule(tree, proposals, probabilities, fresh(sampler.parameters.seed, len(tokens), "accept"))
