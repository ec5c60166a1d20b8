"""Multi-step speculative sampling: independent candidates (SpecInfer, arXiv 2305.09781). Lossless.

Multi-candidate speculative sampling with replacement (arXiv 2401.06706) is the same rule.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specrun.speculation.papers.distributions import Probabilities
from specrun.speculation.papers.rejection import try_in_turn


def multi_step(p: Probabilities, q: Probabilities, draws: Sequence[int], rng: np.random.Generator) -> tuple[int, bool]:
    """A `NodeRule`: try the draws in turn, each against the residual that the rejected ones before it leave.

    draws: independent draws from q, duplicates included; their number must not depend on what was drawn.
    """
    return try_in_turn(p, ((token, q) for token in draws), rng)
