"""The acceptance that the papers predict, by enumeration over small vocabularies."""

from __future__ import annotations

from itertools import product

import numpy as np

from tests.speculation.papers.cases import RULES, Draft, Lossless, independent, then_uniform


def expected_acceptance(how: Lossless, p: np.ndarray, q: np.ndarray) -> float:
    """Probability that one of the candidates is accepted."""
    if how.rule is RULES["k-SEQ, k=2"].rule:
        return k_seq_acceptance(p, q, how.k)
    return rejection_acceptance(p, q, how.k, how.draft)


def k_seq_acceptance(p: np.ndarray, q: np.ndarray, k: int) -> float:
    """1 - (1 - beta)^k at the least gamma on a fine grid that the paper allows."""
    gammas = np.linspace(1.0, max(k, 1), 20_001)
    betas = np.minimum(q, p / gammas[:, None]).sum(axis=1)
    accepted = 1 - (1 - betas) ** k
    return float(accepted[np.argmax(accepted <= gammas * betas + 1e-9)])


def rejection_acceptance(
    p: np.ndarray, q: np.ndarray, k: int, draft: Draft, tried: frozenset[int] = frozenset()
) -> float:
    """The same for multi-step and recursive rejection, over every sequence of draws."""
    if draft is not independent:
        q = np.array([0.0 if x in tried else q[x] for x in range(len(q))])
        if draft is then_uniform and not q.any():
            q = np.array([0.0 if x in tried else 1.0 for x in range(len(q))])
    if k == 0 or not q.any():
        return 0.0
    now = q / q.sum()
    left = np.maximum(p - now, 0)
    total = 0.0
    for token in np.flatnonzero(now).tolist():
        total += min(now[token], p[token])
        refused = now[token] - min(now[token], p[token])
        if refused > 1e-12:  # less is rounding, and then nothing may be left of p
            total += refused * rejection_acceptance(left / left.sum(), q, k - 1, draft, tried | {token})
    return float(total)


def block_length(ps: dict[tuple[int, ...], np.ndarray], qs: dict[tuple[int, ...], np.ndarray], length: int) -> float:
    """Expected accepted length of block verification: the sum of E[p_i] (its lemma: tau >= i has probability p_i)."""
    total = 0.0
    for chain in product(range(len(ps[()])), repeat=length):
        drawn, ratio = 1.0, 1.0
        for i, token in enumerate(chain):
            p, q = ps[chain[:i]][token], qs[chain[:i]][token]
            drawn *= q
            if drawn == 0:
                break
            ratio = min(ratio * p / q, 1.0)
            # Each prefix is met once per chain that begins with it.
            total += drawn * ratio / len(ps[()]) ** (length - 1 - i)
    return total


def tokenwise_length(
    ps: dict[tuple[int, ...], np.ndarray], qs: dict[tuple[int, ...], np.ndarray], length: int
) -> float:
    """Expected accepted length of speculative sampling, token by token."""
    return sum(
        float(np.prod([min(ps[chain[:i]][token], qs[chain[:i]][token]) for i, token in enumerate(chain)]))
        for n in range(1, length + 1)
        for chain in product(range(len(ps[()])), repeat=n)
    )
