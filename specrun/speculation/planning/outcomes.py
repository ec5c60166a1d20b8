"""What a target pass may end with, likeliest first, told before it is over."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from specrun.sampling import Candidates
from specrun.speculation.tree import TokenTree

# Drafted tokens -> what the draft thinks may follow them.
NextTokens = Callable[[Sequence[int]], Candidates]


def likeliest(tree: TokenTree, next_tokens: NextTokens, least_chance: float = 0.0) -> Iterator[tuple[int, ...]]:
    """The tokens that a pass over `tree` may commit: drafted ones, and one more that is not among their children.

    A text ends at a node with the chance that the node is accepted and none of its children is, by the scores of the
    tree, and goes on there as the draft thinks. `next_tokens` is asked about a node when its turn has come, so the
    more of this iterator is used, the more draft passes it takes.
    """
    accepted = np.exp(tree.scores)
    ends = accepted.copy()
    np.subtract.at(ends, tree.parents[1:], accepted[1:])
    # A node to be looked into, or what may follow it: (minus the chance, order of offering, node, token).
    waiting: list[tuple[float, int, int, int | None]] = [
        (-float(chance), node, node, None) for node, chance in enumerate(ends) if chance > 0
    ]
    heapq.heapify(waiting)
    n_offered = len(tree)
    while waiting:
        chance, _, node, token = heapq.heappop(waiting)
        if -chance < least_chance:
            return
        path = [int(tree.tokens[i]) for i in tree.path_to(node)]
        if token is not None:
            yield (*path[1:], token)
            continue
        candidates = next_tokens(path[1:])
        drafted = {int(tree.tokens[child]) for child in tree.children[node]}
        others = [
            (other, share)
            for other, share in zip(candidates.tokens.tolist(), candidates.shares.tolist(), strict=True)
            if other not in drafted
        ]
        total = sum(share for _, share in others)
        for other, share in others:
            if share > 0:
                heapq.heappush(waiting, (chance * share / total, n_offered, node, other))
                n_offered += 1
