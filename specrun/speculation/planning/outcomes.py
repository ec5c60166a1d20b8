"""The tokens that a running target pass may commit, likeliest first, so that drafting can begin before it ends."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from specrun.sampling import Candidates
from specrun.speculation.tree import TokenTree

# Drafted tokens after the root -> the draft's candidates for the token after them.
NextTokens = Callable[[Sequence[int]], Candidates]


def likeliest(tree: TokenTree, next_tokens: NextTokens, least_chance: float = 0.0) -> Iterator[tuple[int, ...]]:
    """Yield the token sequences that a pass over `tree` may commit, likeliest first, down to the chance `least_chance`.

    A sequence consists of a path of drafted tokens and one token that no child there holds. By the scores of the tree a
    path ends at a node with the chance that the node is accepted and none of its children is; the draft's candidates
    after the node share that chance. `next_tokens` is called for a node only when it is needed, so each further item
    may take a draft pass.
    """
    accepted = np.exp(tree.scores)
    ends = accepted.copy()
    np.subtract.at(ends, tree.parents[1:], accepted[1:])
    # A heap of nodes (token None) and of tokens that may follow a node: (-chance, serial number, node, token).
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
        shares = dict(zip(candidates.tokens.tolist(), candidates.shares.tolist(), strict=True))
        others = {other: share for other, share in shares.items() if other not in drafted}
        total = sum(others.values())
        for other, share in others.items():
            if share > 0:
                heapq.heappush(waiting, (chance * share / total, n_offered, node, other))
                n_offered += 1
