"""Random token trees, and paths of them."""

from __future__ import annotations

import numpy as np

from specrun.speculation.tree import NO_PARENT, ROOT, TokenTree


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


def random_path(rng: np.random.Generator, tree: TokenTree, eagerness: float = 0.8) -> list[int]:
    """A path from the root, as a pass accepts it: `eagerness` is the chance that it goes on at a node with children."""
    path = [ROOT]
    while tree.children[path[-1]] and rng.random() < eagerness:
        path.append(int(rng.choice(tree.children[path[-1]])))
    return path
