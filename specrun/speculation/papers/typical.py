"""Typical acceptance (Medusa, arXiv 2401.10774). LOSSY: its text is not distributed as the target's."""

from __future__ import annotations

import math

import numpy as np

from specrun.speculation.papers.distributions import Probabilities

# The defaults of Medusa's code (posterior_threshold, posterior_alpha); the paper uses delta = sqrt(epsilon).
EPSILON = 0.09
DELTA = 0.3


def is_typical(p: Probabilities, token: int, epsilon: float = EPSILON, delta: float = DELTA) -> bool:
    """Whether p(token) > min(epsilon, delta * exp(-H)), where H is the entropy of p in nats."""
    likely = p[p > 0]
    entropy = -float((likely * np.log(likely)).sum())
    return bool(p[token] > min(epsilon, delta * math.exp(-entropy)))
