"""Sequoia's positional acceptance (arXiv 2402.12374): p_k, the chance that the k-th child is the one accepted.

Estimated position by position of a text, from what target and draft expect there. A position contributes an expected
value, averaged over the noise or the draws, and not one outcome of them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specrun.sampling import Distribution
from specrun.speculation.planning.calibration import MAX_RANK

Vector = NDArray[np.float64]


def greedy(target_row: NDArray[np.float32], draft_row: NDArray[np.float32]) -> Vector:
    """float64[MAX_RANK] of one position: 1 at the rank that the draft gives the target's choice.

    target_row, draft_row: float32 logits; the draft's may be shorter.
    """
    found = np.zeros(MAX_RANK)
    choice = int(target_row.argmax())
    if choice < len(draft_row):
        above = draft_row > draft_row[choice]
        # Of equal logits the lower id comes first.
        rank = int(above.sum()) + int((draft_row[:choice] == draft_row[choice]).sum())
        if rank < MAX_RANK:
            found[rank] = 1.0
    return found


def shared_noise(p: Distribution, q: Distribution, rng: np.random.Generator, n_draws: int) -> Vector:
    """float64[MAX_RANK] of one position: how often the target's choice has each rank with the draft, over `n_draws`
    draws of the noise that they share (Gumbel, arXiv 2408.07978).
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
    found = np.full(len(tokens), -np.inf)
    found[np.searchsorted(tokens, distribution.tokens)] = np.log(distribution.probabilities)
    return found


def without_replacement(p: Distribution, q: Distribution, rng: np.random.Generator, n_draws: int) -> Vector:
    """float64[MAX_RANK] of one position: the chance that the k-th draw is accepted, by the rule of Sequoia and of
    recursive rejection.

    Whether the next draw is accepted is summed over all tokens that it could be; only which token was rejected before
    is drawn.
    """
    tokens = np.union1d(p.tokens, q.tokens)
    found = np.zeros(MAX_RANK)
    n_ranks = min(MAX_RANK, len(q.tokens))
    for _ in range(n_draws):
        rest, draft = np.zeros(len(tokens)), np.zeros(len(tokens))
        rest[np.searchsorted(tokens, p.tokens)] = p.probabilities
        draft[np.searchsorted(tokens, q.tokens)] = q.probabilities
        reached = 1.0
        for rank in range(n_ranks):
            accepted = min(float(np.minimum(rest, draft).sum()), 1.0)
            found[rank] += reached * accepted
            reached *= 1 - accepted
            refused = np.maximum(draft - rest, 0.0)
            rest = np.maximum(rest - draft, 0.0)
            if reached < 1e-6 or refused.sum() <= 0 or rest.sum() <= 0:
                break
            tried = rng.choice(len(tokens), p=refused / refused.sum())
            rest /= rest.sum()
            draft[tried] = 0.0
            if draft.sum() <= 0:
                break
            draft /= draft.sum()
    return found / n_draws
