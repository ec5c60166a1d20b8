"""How many of a mixture's experts a cache would have held, by the policy that says which one leaves it."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from specrun.llama.streaming.cached_experts import ExpertCache

NEVER = 1 << 60  # when an expert is next asked for that is not asked for any more


def least_recently_used(requests: Sequence[int], size: int) -> int:
    """Hits of a cache of `size` experts that drops the one whose last request is longest ago."""
    return _hits(requests, size, lambda _, now: (now, 0))


def least_frequently_used(requests: Sequence[int], size: int) -> int:
    """Hits of a cache that drops the expert with the fewest requests so far; of several, the least recently used."""
    counts = Counter[int]()

    def rank(expert: int, now: int) -> tuple[int, int]:
        counts[expert] += 1
        return counts[expert], now

    return _hits(requests, size, rank)


def used_often_of_late(choices: NDArray[np.integer], n_experts: int, size: int) -> int:
    """Hits of specrun's cache, all experts being of one size. choices: int[n_texts, n_layers, n_tokens, n_used]."""
    n_layers, n_used = choices.shape[1], choices.shape[3]
    cache = ExpertCache(np.ones((n_layers, n_experts), np.int64), n_used, size)
    for text in choices:
        for token in text.transpose(1, 0, 2):
            for layer, experts in enumerate(token):
                cache.choose(layer, np.bincount(experts, minlength=n_experts))
    return cache.n_found


def optimum(requests: Sequence[int], size: int) -> int:
    """Hits of Belady's cache, which drops the expert whose next request is furthest away."""
    following, next_of = [NEVER] * len(requests), dict[int, int]()
    for now in range(len(requests) - 1, -1, -1):
        following[now] = next_of.get(requests[now], NEVER)
        next_of[requests[now]] = now
    return _hits(requests, size, lambda _, now: (-following[now], 0))


def _hits(requests: Sequence[int], size: int, rank: Callable[[int, int], tuple[int, int]]) -> int:
    """Hits of a cache that drops the expert of the lowest rank, which an expert gets anew at each request."""
    ranks = dict[int, tuple[int, int]]()  # of what the cache holds
    order: list[tuple[tuple[int, int], int]] = []  # with ranks that are out of date
    hits = 0
    for now, expert in enumerate(requests):
        hits += expert in ranks
        if expert not in ranks and len(ranks) == size:
            while ranks.get(order[0][1]) != order[0][0]:
                heapq.heappop(order)
            del ranks[heapq.heappop(order)[1]]
        ranks[expert] = rank(expert, now)
        heapq.heappush(order, (ranks[expert], expert))
    return hits


def most_used(requests: Sequence[int], size: int, counted: Sequence[int]) -> int:
    """Hits if the cache always holds the `size` experts that `counted`, requests of other texts, ask for most often."""
    held = {expert for expert, _ in Counter(counted).most_common(size)}
    return sum(expert in held for expert in requests)
