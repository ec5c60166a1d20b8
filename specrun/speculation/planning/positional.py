"""Sequoia's positional acceptance (arXiv 2402.12374): p_k, the chance that the k-th child is the accepted one.

It is the mean over the positions of a text of a vector computed from the logits of target and draft there: an expected
value over the noise, not the outcome of a single draw. It is that of sample and match, for Sequoia's own rule as well.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specrun.sampling import Distribution
from specrun.speculation.planning.calibration import MAX_RANK

Vector = NDArray[np.float64]


def greedy(choice: int, draft_row: NDArray[np.float32]) -> Vector:
    """float64[MAX_RANK] of one position for greedy decoding: 1 at the draft's rank of the target's choice.

    choice: the target's token. draft_row: float32 logits, which the choice may lie beyond.
    """
    vector = np.zeros(MAX_RANK)
    if choice < len(draft_row):
        above = draft_row > draft_row[choice]
        # Of tokens with equal logits the lower id ranks first.
        rank = int(above.sum()) + int((draft_row[:choice] == draft_row[choice]).sum())
        if rank < MAX_RANK:
            vector[rank] = 1.0
    return vector


def shared_noise(p: Distribution, q: Distribution, rng: np.random.Generator, n_draws: int) -> Vector:
    """float64[MAX_RANK] of one position: the share of `n_draws` draws of the shared Gumbel noise (arXiv 2408.07978) in
    which the target's choice has each rank with the draft. p: the target's distribution. q: the draft's.
    """
    tokens = np.union1d(p.tokens, q.tokens)
    log_p, log_q = (_log(distribution, tokens) for distribution in (p, q))
    noise = rng.gumbel(size=(n_draws, len(tokens)))
    choices = (log_p + noise).argmax(axis=1)
    of_draft = log_q + noise
    own = np.take_along_axis(of_draft, choices[:, None], axis=1)
    ranks = (of_draft > own).sum(axis=1)[np.isfinite(own[:, 0])]
    return np.bincount(ranks[ranks < MAX_RANK], minlength=MAX_RANK) / n_draws


def _log(distribution: Distribution, tokens: NDArray[np.int64]) -> Vector:
    """float64[len(tokens)]: log probabilities of `tokens`, which contain those of the distribution, ascending."""
    logs = np.full(len(tokens), -np.inf)
    logs[np.searchsorted(tokens, distribution.tokens)] = np.log(distribution.probabilities)
    return logs
