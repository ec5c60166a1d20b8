"""Speculative sampling: one candidate (Leviathan et al., arXiv 2211.17192; Chen et al., 2302.01318). Lossless."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specrun.speculation.papers.distributions import Probabilities
from specrun.speculation.papers.rejection import try_in_turn


def speculative_sampling(
    p: Probabilities, q: Probabilities, draws: Sequence[int], rng: np.random.Generator
) -> tuple[int, bool]:
    """A `NodeRule`: accept the draw with probability min(1, p/q), else draw from the residual.

    draws: one token drawn from q, or none; further ones are ignored. The acceptance rate is sum(min(p, q)).
    """
    return try_in_turn(p, ((token, q) for token in draws[:1]), rng)
