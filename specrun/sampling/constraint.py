"""What may be written at all: logits of forbidden tokens become minus infinity before any filter.

A grammar takes a fraction of a microsecond to check a token, and a vocabulary may have 152k of them. So tokens are
checked from the likeliest down, and only as far as the filters need: `masked` leaves the rest at minus infinity once
they cannot change what the filters keep.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specrun.sampling import filters
from specrun.sampling.parameters import SamplingParameters

Logits = NDArray[np.float32]
TokenIds = NDArray[np.int64]

NO_TOKEN = -1  # what is sampled where a constraint leaves nothing to write

_DEPTHS = (64, 512, 2048)  # likeliest tokens that are checked before all are
_DRAFT_DEPTH = 512  # where a draft stops looking for more than one
_DRAFT_GAP = 4.0  # nats, at temperatures up to 1, below the likeliest at which a draft does not look
_ROUNDING = 1e-5  # more than float32 can lose


class Constraint(Protocol):
    """Decides which tokens may follow those written since the prompt."""

    def allowed(self, written: Sequence[int], tokens: TokenIds) -> NDArray[np.bool_]:
        """bool[len(tokens)]: which of `tokens` may come after `written`. None may if `written` has ended, or is itself
        forbidden.
        """
        ...


def masked(
    logits: Logits,
    allowed: Callable[[TokenIds], NDArray[np.bool_]],
    parameters: SamplingParameters,
    n_candidates: int | None = None,
) -> Logits:
    """float32[n_vocab]: `logits` with forbidden tokens at minus infinity, and with those that do not matter as well.

    What `parameters` keep of it is what they keep of a row where all was checked. n_candidates: for a draft that wants
    so many and is content with fewer where they are rare; it may then miss allowed tokens, though never all of them.
    """
    row = np.full_like(logits, -np.inf)
    unchecked = np.ones(len(logits), np.bool_)
    found = np.empty(0)  # logits of the allowed ones, falling
    n_checked = 0
    for depth in (depth for depth in _DEPTHS if depth < len(logits)):
        tokens = filters.top_k(logits, depth)
        new = tokens[n_checked:]
        kept = new[allowed(new)]
        row[kept] = logits[kept]
        unchecked[new] = False
        found, n_checked = np.append(found, logits[kept]), depth
        bound, n_left = float(logits[tokens[-1]]), len(logits) - depth
        if len(found) and (
            _settled(parameters, found, bound, n_left)
            if n_candidates is None
            else depth >= _DRAFT_DEPTH or _enough(parameters, found, bound, n_candidates)
        ):
            return row
    rest = np.flatnonzero(unchecked)
    kept = rest[allowed(rest)]
    row[kept] = logits[kept]
    return row


def _settled(p: SamplingParameters, found: NDArray[np.float64], bound: float, n_unchecked: int) -> bool:
    """Whether the filters keep the same tokens whatever the unchecked ones are.

    found: float64[k], k > 0, the allowed logits, falling. bound: no unchecked logit is above it.
    """
    if p.temperature == 0 or 0 < p.top_k <= len(found):
        return True
    if p.top_p < 1:
        # Where top-p cuts depends on the total, which is at least that of what was found, and at most this much more.
        n_more = min(n_unchecked, p.top_k - len(found)) if p.top_k else n_unchecked
        shares = np.cumsum(np.exp(found - found[0]))
        most = shares[-1] + n_more * np.exp(bound - found[0])
        cuts = np.searchsorted(shares, [p.top_p * shares[-1] * (1 - _ROUNDING), p.top_p * most * (1 + _ROUNDING)])
        return bool(cuts[0] == cuts[1])
    return p.min_p > 0 and bound < found[0] + np.log(p.min_p) - _ROUNDING * (1 + abs(found[0]))


def _enough(p: SamplingParameters, found: NDArray[np.float64], bound: float, n_candidates: int) -> bool:
    """Whether a draft has what it needs, or what is left is too unlikely to be worth a node."""
    return len(found) >= n_candidates or bound < found[0] - _DRAFT_GAP * max(p.temperature, 1.0)
