"""Speculative sampling: one candidate (Leviathan et al., 2211.17192; Chen et al., 2302.01318). Lossless."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specrun.speculation.papers.distributions import Probabilities
from specrun.speculation.papers.rejection import try_in_turn


def speculative_sampling(
    p: Probabilities, q: Probabilities, draws: Sequence[int], rng: np.random.Generator
) -> tuple[int, bool]:
    """Accept the draw with probability min(1, p/q), else commit a token of the residual. A node rule.

    draws: one token drawn from q, or none; later ones are not looked at. Accepts with probability sum(min(p, q)).
    """
    return try_in_turn(p, ((token, q) for token in draws[:1]), rng)
