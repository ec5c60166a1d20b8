"""Random token trees."""

from __future__ import annotations

import numpy as np

from specrun.speculation.tree import NO_PARENT, TokenTree


def random_tree(
    rng: np.random.Generator, n_nodes: int, n_vocab: int, root: int = 0, max_leaves: int = 10_000
) -> TokenTree:
    """A tree of `n_nodes` nodes with at most `max_leaves` leaves; siblings hold different tokens."""
    tokens, parents, scores = [root], [NO_PARENT], [0.0]
    is_leaf = [True]
    bushiness = rng.random()
    while len(tokens) < n_nodes:
        # Late nodes make deep trees, any node makes bushy ones.
        parent = int(rng.integers(len(tokens))) if rng.random() < bushiness else len(tokens) - 1
        if sum(is_leaf) >= max_leaves and not is_leaf[parent]:
            parent = is_leaf.index(True)
        token = int(rng.integers(n_vocab))
        if any(p == parent and t == token for p, t in zip(parents, tokens, strict=True)):
            continue
        is_leaf[parent] = False
        is_leaf.append(True)
        tokens.append(token)
        parents.append(parent)
        scores.append(scores[parent] - float(rng.exponential()) - 1e-6)
    return TokenTree.build(tokens, parents, scores)
