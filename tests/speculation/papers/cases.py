"""Pairs of distributions that acceptance rules get wrong, and drafts that draw as each rule demands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from specrun.speculation.papers.rules import NodeRule, k_seq, multi_step, sequoia

Pair = tuple[np.ndarray, np.ndarray]
# (q, how often, k, rng) -> int64[how often, at most k]: candidates in the order drawn
Draft = Callable[[np.ndarray, int, int, np.random.Generator], np.ndarray]


class FixedUniform:
    """A generator whose next uniform number is known."""

    def __init__(self, uniform: float) -> None:
        self.uniform = uniform

    def random(self) -> float:
        return self.uniform


def normalized(*weights: float) -> np.ndarray:
    return np.array(weights) / sum(weights)


def softmax(logits: np.ndarray, temperature: float) -> np.ndarray:
    weights = np.exp((logits - logits.max()) / temperature)
    return weights / weights.sum()


def top_k(p: np.ndarray, k: int) -> np.ndarray:
    kept = np.where(p >= np.sort(p)[-k], p, 0.0)
    return kept / kept.sum()


def top_p(p: np.ndarray, share: float) -> np.ndarray:
    order = np.argsort(-p)
    kept = np.zeros_like(p)
    head = order[: int(np.searchsorted(np.cumsum(p[order]), share)) + 1]
    kept[head] = p[head]
    return kept / kept.sum()


P = normalized(0.05, 0.3, 0.25, 0.02, 0.2, 0.18)
Q = normalized(0.35, 0.1, 0.05, 0.15, 0.05, 0.3)
FLAT = np.full(6, 1 / 6)
COLD = np.array([2.0, 2.001, 2.0005, 1.0, -3.0, 2.0])

# name -> (target's p, draft's q), all over six tokens.
PAIRS: dict[str, Pair] = {
    "ordinary": (P, Q),
    "disjoint supports": (normalized(1, 2, 3, 0, 0, 0), normalized(0, 0, 0, 3, 2, 1)),
    "one-hot p": (np.eye(6)[2], Q),
    "one-hot q": (P, np.eye(6)[2]),
    "one-hot both": (np.eye(6)[1], np.eye(6)[4]),
    "equal": (P, P.copy()),
    "nearly equal": (P, normalized(*(P + 1e-9 * np.array([1, -1, 2, -2, 0, 0])))),
    "equal but for rounding": (P, P * (1 + 2e-16 * np.array([1, -1, 1, -1, 1, -1]))),
    "flat q": (P, FLAT),
    "flat p": (FLAT, normalized(0.9, 0.02, 0.02, 0.02, 0.02, 0.02)),
    "top-k": (top_k(P, 3), top_k(Q, 2)),
    "top-p": (top_p(P, 0.8), top_p(Q, 0.7)),
    "temperature near 0": (softmax(COLD, 1e-3), softmax(COLD[::-1], 1e-3)),
    "q with tiny probabilities": (P, normalized(1, 1e-300, 1e-300, 5e-324, 1e-200, 1e-9)),
    "p with tiny probabilities": (normalized(1, 1e-300, 0, 5e-324, 1e-200, 1e-9), Q),
    "half of q's support": (normalized(1, 0, 2, 0, 3, 4), normalized(0, 0, 0.5, 0.5, 0, 0)),
}


def independent(q: np.ndarray, n_times: int, k: int, rng: np.random.Generator) -> np.ndarray:
    return rng.choice(len(q), size=(n_times, k), p=q)


def without_replacement(q: np.ndarray, n_times: int, k: int, rng: np.random.Generator) -> np.ndarray:
    """Gumbel top-k, which ends with q's support."""
    return then_uniform(q, n_times, min(k, int((q > 0).sum())), rng)


def then_uniform(q: np.ndarray, n_times: int, k: int, rng: np.random.Generator) -> np.ndarray:
    """Gumbel top-k, and uniformly from all other tokens after it."""
    logs = np.log(np.where(q > 0, q, 1.0))
    scores = np.where(q > 0, logs, -1e6) + rng.gumbel(size=(n_times, len(q)))
    return np.argsort(-scores, axis=1)[:, :k]


@dataclass(frozen=True)
class Lossless:
    """A node rule, and a draft with k candidates that it is lossless for."""

    rule: NodeRule
    draft: Draft
    k: int


RULES: dict[str, Lossless] = {
    "speculative sampling": Lossless(multi_step, independent, 1),
    "speculative sampling, none drawn": Lossless(multi_step, independent, 0),
    "multi-step, k=3": Lossless(multi_step, independent, 3),
    "recursive rejection, k=3": Lossless(sequoia, without_replacement, 3),
    "Sequoia, k=3": Lossless(sequoia, then_uniform, 3),
    "Sequoia, k=6": Lossless(sequoia, then_uniform, 6),
    "k-SEQ, k=2": Lossless(k_seq, independent, 2),
    "k-SEQ, none drawn": Lossless(k_seq, independent, 0),
}
