"""A toy target and draft whose next token depends on the text so far, and trees drawn from that draft."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from specrun.speculation.accept import Accepted
from specrun.speculation.drafter import DraftNode
from specrun.speculation.papers.growers import Proposal
from specrun.speculation.papers.rules import Probabilities, draw
from specrun.speculation.tree import NO_PARENT, ROOT, TokenTree
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


class TableModel:
    """A `DraftModel` that says what the tables say of the text since it was started."""

    n_vocab = N_VOCAB

    def __init__(self, q: Tables) -> None:
        with np.errstate(divide="ignore"):
            self._logits = {text: np.log(p).astype(np.float32) for text, p in q.items()}
        self._texts: dict[int, Text] = {}

    def logits(self, text: Text) -> NDArray[np.float32]:
        return self._logits[text]

    def start(self, _tokens: Sequence[int]) -> NDArray[np.float32]:
        self._texts = {ROOT: ()}
        return self._logits[()]

    def expandable(self, parents: Sequence[int], width: int) -> Sequence[int]:
        return range(min(len(parents), width))

    def expand(self, nodes: Sequence[DraftNode]) -> NDArray[np.float32]:
        for node in nodes:
            self._texts[node.id] = (*self._texts[node.parent], node.token)
        return np.stack([self._logits[self._texts[node.id]] for node in nodes])


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
