"""The filters top-k, top-p and min-p, applied before the temperature as in llama.cpp.

Sorting 152k logits, or taking their exponentials, takes about a millisecond. So the tokens above a threshold are
selected first, and only these are sorted.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from specrun.errors import LlamaError

Logits = NDArray[np.float32]
TokenIds = NDArray[np.int64]

_GROUP = 64  # logits in a group
_SHORT = _GROUP * _GROUP  # a row with fewer logits is not grouped
_TOP_P_ATTEMPTS = (128, 2048)  # numbers of likeliest tokens that are sorted before all are


def group_maxima(logits: Logits) -> Logits:
    """float32[..., n]: the largest logit of each of n groups of about 64 tokens; token i is in group i % n.

    `above`, `top_k` and the maximum follow from it without reading a whole row again. Rows of fewer than 4,096 logits
    are returned unchanged: every token is a group of its own.

    Raises LlamaError for logits that are no numbers, which broken weights give.
    """
    largest, n_vocab = logits, logits.shape[-1]
    if n_vocab >= _SHORT:
        n_groups = n_vocab // _GROUP
        grouped, rest = logits[..., : _GROUP * n_groups], logits[..., _GROUP * n_groups :]
        largest = grouped.reshape(*logits.shape[:-1], _GROUP, n_groups).max(axis=-2)
        np.maximum(largest[..., : n_vocab % _GROUP], rest, out=largest[..., : n_vocab % _GROUP])
    check(float(largest.max()))
    return largest


def check(highest: float) -> None:
    """Raises LlamaError if the highest logit is not a finite number, which a single NaN makes it."""
    if not highest < np.inf:
        raise LlamaError("the model computes values that are no numbers (NaN); its weights may be broken, try another")


def above(logits: Logits, threshold: float, largest: Logits) -> TokenIds:
    """Ids whose logit is at least `threshold`, ascending. largest: `group_maxima(logits)`."""
    threshold = np.float32(threshold)
    groups = np.flatnonzero(largest >= threshold)
    n_groups = len(largest)
    if n_groups == len(logits):
        return groups
    if 4 * len(groups) >= n_groups:
        return np.flatnonzero(logits >= threshold)
    members, columns = np.nonzero(logits[: _GROUP * n_groups].reshape(_GROUP, n_groups)[:, groups] >= threshold)
    rest = np.flatnonzero(logits[_GROUP * n_groups :] >= threshold)
    return np.concatenate([members * n_groups + groups[columns], rest + _GROUP * n_groups])


def by_likelihood(logits: Logits, tokens: TokenIds) -> TokenIds:
    """`tokens`, which must ascend, sorted by falling logit; equal logits by ascending id."""
    return tokens[np.argsort(-logits[tokens], kind="stable")]


def top_k(logits: Logits, k: int) -> TokenIds:
    """The k likeliest ids, likeliest first."""
    largest = group_maxima(logits)
    if k >= len(largest):
        return by_likelihood(logits, np.arange(len(logits)))[:k]
    # The k-th largest group maximum: at least k logits reach it, so all of the top k do, and few others.
    threshold = np.partition(largest, len(largest) - k)[len(largest) - k]
    return by_likelihood(logits, above(logits, threshold, largest))[:k]


def top_k_of_each(rows: Logits, k: int) -> tuple[TokenIds, Logits]:
    """int64[n, k]: the k likeliest ids of each row, likeliest first, and float32[n, k]: their logits.

    Ids whose logit is minus infinity are left out; the logits after the last id of a row are minus infinity, too.
    """
    n, n_vocab = rows.shape
    largest = group_maxima(rows)
    n_groups = largest.shape[1]
    threshold = np.full((n, 1), np.finfo(np.float32).min)
    if k < n_groups:  # as in `top_k`
        at = n_groups - k
        threshold = np.maximum(threshold, np.partition(largest, at, axis=1)[:, at : at + 1])
    row, token = np.divmod(np.flatnonzero(largest >= threshold), n_groups)  # a tenth of the time of `nonzero`
    if n_groups < n_vocab:
        groups, n_grouped = token, _GROUP * n_groups
        members = rows[:, :n_grouped].reshape(n, _GROUP, n_groups)[row, :, groups]
        place, member = np.divmod(np.flatnonzero(members >= threshold[row]), _GROUP)
        others, rest = (rows[:, n_grouped:] >= threshold).nonzero()
        token = np.concatenate([member * n_groups + groups[place], rest + n_grouped])
        row = np.concatenate([row[place], others])
        order = np.lexsort((token, row))
        row, token = row[order], token[order]
    # Ids ascend here, so that a stable sort puts the lower one of equals first.
    counts = np.bincount(row, minlength=n)
    rank = np.arange(len(row)) - (counts.cumsum() - counts)[row]
    tokens = np.zeros((n, counts.max()), np.int64)
    falling = np.full(tokens.shape, np.inf, np.float32)
    tokens[row, rank], falling[row, rank] = token, -rows[row, token]
    order = falling.argsort(axis=1, kind="stable")[:, :k]
    each = np.arange(n)[:, None]
    return tokens[each, order], -falling[each, order]


def n_uncut(logits: Logits, p: float, share: float) -> NDArray[np.intp]:
    """int[n]: how many of each row of float32[n, k] logits, likeliest first, `cut` leaves."""
    k = logits.shape[1]
    likely = (logits >= logits[:, :1] + np.float32(np.log(share))).sum(axis=1) if share else np.full(len(logits), k)
    if p == 1:
        return likely
    values = logits.astype(np.float64)
    cumulative = np.exp(values - values[:, :1]).cumsum(axis=1)
    return np.minimum(likely, (cumulative < p * cumulative[:, -1:]).sum(axis=1) + 1)


def cut(logits: Logits, tokens: TokenIds, p: float, share: float) -> TokenIds:
    """The shortest prefix of `tokens` (likeliest first) whose share of the probability of all `tokens` reaches `p`, and
    of these the ones that are at least `share` times as likely as the first: top-p, then min-p.

    Most often there are 40. Then Python is faster than numpy, whose every call is slow after a pass over a model.
    """
    if p == 1:
        return min_p(logits, tokens, share)
    values = logits[tokens].tolist()
    weights = [math.exp(value - values[0]) for value in values]
    enough, cumulative = p * sum(weights), 0.0
    least = float(logits[tokens[0]] + np.float32(np.log(share))) if share else -math.inf
    for n, (value, weight) in enumerate(zip(values, weights, strict=True)):
        if value < least:
            return tokens[:n]
        cumulative += weight
        if cumulative >= enough:
            return tokens[: n + 1]
    return tokens


def top_p_of_all(logits: Logits, p: float) -> TokenIds:
    """The ids that pass top-p among the whole vocabulary, likeliest first, without sorting all of it."""
    highest = float(logits.max())
    check(highest)
    total = float(np.exp(logits - np.float32(highest)).sum(dtype=np.float64))
    for k in (*_TOP_P_ATTEMPTS, len(logits)):
        tokens = top_k(logits, k)
        cumulative = np.cumsum(np.exp(logits[tokens].astype(np.float64) - highest))
        if cumulative[-1] >= p * total:
            break
    return tokens[: int(np.searchsorted(cumulative, p * total)) + 1]


def min_p(logits: Logits, tokens: TokenIds, p: float) -> TokenIds:
    """The `tokens`, in their order, that are at least `p` times as likely as the likeliest of them."""
    if p == 0:
        return tokens
    own = logits[tokens]
    return tokens[own >= own.max() + np.float32(np.log(p))]
