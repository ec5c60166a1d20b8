"""A toy target and draft whose next token depends on the text so far, and trees drawn from that draft."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from specrun.speculation.accept import Accepted
from specrun.speculation.papers.node_rules import Probabilities, draw
from specrun.speculation.papers.sampled import Proposal
from specrun.speculation.tree import NO_PARENT, TokenTree
from tests.speculation.papers.cases import Draft, independent

Text = tuple[int, ...]
Tables = dict[Text, Probabilities]

N_VOCAB = 3


def tables(seed: int, length: int) -> Tables:
    """Random distributions after every text of up to `length` tokens, a third of them without one of the tokens."""
    rng = np.random.default_rng(seed)
    found = {}
    for n in range(length + 1):
        for text in product(range(N_VOCAB), repeat=n):
            weights = rng.dirichlet(np.full(N_VOCAB, 2.0))
            if rng.random() < 1 / 3:
                weights[int(rng.integers(N_VOCAB))] = 0.0
            found[text] = weights / weights.sum()
    return found


def drafted(
    q: Tables, depth: int, k: int, draft: Draft, rng: np.random.Generator
) -> tuple[TokenTree, list[Proposal | None]]:
    """A tree with at most k children below every node that is less than `depth` deep, and its proposals by node."""
    texts: list[Text] = [()]
    parents = [NO_PARENT]
    found: dict[Text, Proposal] = {}
    for node, text in enumerate(texts):  # grows as it goes
        if len(text) == depth:
            continue
        draws = tuple(draft(q[text], 1, k, rng)[0].tolist())
        support = np.flatnonzero(q[text])
        found[text] = Proposal(support, q[text][support], draws)
        for token in dict.fromkeys(draws):
            texts.append((*text, token))
            parents.append(node)
    tree = TokenTree.build(
        [text[-1] if text else 0 for text in texts], parents, [-len(text) - rng.random() / 2 for text in texts]
    )
    return tree, [found.get(text_at(tree, node)) for node in range(len(tree))]


def chain(q: Tables, depth: int, rng: np.random.Generator) -> tuple[TokenTree, list[Proposal | None]]:
    return drafted(q, depth, 1, independent, rng)


def text_at(tree: TokenTree, node: int) -> Text:
    return tuple(tree.tokens[tree.path_to(node)[1:]].tolist())


class Target:
    """Gives the table's distribution after a node, and checks that it is asked with that node's text."""

    def __init__(self, p: Tables, tree: TokenTree) -> None:
        self._p = p
        self._tree = tree

    def __call__(self, node: int, tokens: Sequence[int]) -> Probabilities:
        assert tuple(tokens) == text_at(self._tree, node)
        return self._p[tuple(tokens)]


def completed(accepted: Accepted, p: Tables, length: int, rng: np.random.Generator) -> Text:
    """The first `length` tokens of the text that begins with what was committed, the rest sampled plainly."""
    text = tuple(accepted.tokens)
    while len(text) < length:
        text = (*text, draw(p[text], rng))
    return text[:length]


def text_probabilities(p: Tables, length: int) -> dict[Text, float]:
    """What plain sampling writes."""
    return {
        text: float(np.prod([p[text[:i]][token] for i, token in enumerate(text)]))
        for text in product(range(N_VOCAB), repeat=length)
    }
