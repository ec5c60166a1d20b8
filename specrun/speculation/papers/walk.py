"""Acceptance rules for a whole tree, and their one interface to the rest of specrun: `PaperRule`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specrun.sampling import Sampler
from specrun.speculation.drafter import Draft
from specrun.speculation.papers.block_verification import block_verification
from specrun.speculation.papers.drawn import DrawnDraft, Proposal, generator
from specrun.speculation.papers.node_rules import Probabilities, draw
from specrun.speculation.sample_and_match import Accepted
from specrun.speculation.tree import ROOT, TokenTree

# The defaults of Medusa's code (posterior_threshold, posterior_alpha); the paper uses delta = sqrt(epsilon).
EPSILON = 0.09
DELTA = 0.3

NodeRule = Callable[[Probabilities, Probabilities, Sequence[int], np.random.Generator], tuple[int, bool]]
"""(target's distribution p, draft's q over the same vocabulary, candidates in the order drawn, rng)
-> (token to commit, whether it is an accepted candidate).
"""

NodeProbabilities = Callable[[int, Sequence[int]], Probabilities]
"""(node, tokens of the path from below the root to the node) -> the target's distribution after the node."""

AcceptTree = Callable[[TokenTree, Sequence[Proposal | None], NodeProbabilities, np.random.Generator], Accepted]
"""(tree, proposal for each node or None, the target's distributions, rng) -> what is accepted."""


@dataclass(frozen=True)
class PaperRule:
    """A rule that compares distributions, as an `AcceptanceRule`.

    walk: what it accepts of a tree.
    lossless: whether the text is distributed as the target's.
    """

    walk: AcceptTree
    lossless: bool = True

    def accept(self, draft: Draft, rows: NDArray[np.float32], sampler: Sampler, tokens: Sequence[int]) -> Accepted:
        """The accepted path; see `specrun.speculation.accept.accept`."""
        recent = sampler.recent(tokens)

        def probabilities(node: int, committed: Sequence[int]) -> Probabilities:
            return sampler.distribution(rows[node], [*recent, *committed]).dense(sampler.n_vocab)

        proposals = draft.proposals if isinstance(draft, DrawnDraft) else (None,) * len(draft.tree)
        rng = generator(sampler.parameters.seed, len(tokens), "accept")
        return self.walk(draft.tree, proposals, probabilities, rng)


def by_node(rule: NodeRule) -> AcceptTree:
    """The acceptance rule that goes from the root on to the child whose token `rule` accepts, until it accepts none.

    After a node without a proposal a token of the target's distribution is drawn. A draw whose child was cut from the
    tree must stay in the proposal's `draws`, or the result is biased; if accepted, it ends the walk.
    """

    def accept(
        tree: TokenTree,
        proposals: Sequence[Proposal | None],
        probabilities: NodeProbabilities,
        rng: np.random.Generator,
    ) -> Accepted:
        path = [ROOT]
        tokens: list[int] = []
        while True:
            p = probabilities(path[-1], tokens)
            proposal = proposals[path[-1]]
            if proposal is None:
                token, accepted = draw(p, rng), False
            else:
                token, accepted = rule(p, proposal.dense(len(p)), proposal.draws, rng)
            child = tree.child_with_token(path[-1], token) if accepted else None
            tokens.append(token)
            if child is None:
                return Accepted(path, tokens)
            path.append(child)

    return accept


def walk_block(
    tree: TokenTree,
    proposals: Sequence[Proposal | None],
    probabilities: NodeProbabilities,
    rng: np.random.Generator,
) -> Accepted:
    """Block verification of a chain. It may have been cut to a length, but not because of its tokens.

    Raises ValueError for a tree that is not a chain of drawn tokens.
    """
    drafted = tree.tokens[1:].tolist()
    sources = [proposal for proposal in proposals[: len(drafted)] if proposal is not None]
    if tree.depth != len(drafted) or [source.draws for source in sources] != [(token,) for token in drafted]:
        raise ValueError("block verification needs a chain, every token of it drawn from the draft's distribution")
    ps = [probabilities(node, drafted[:node]) for node in range(len(tree))]
    qs = [source.dense(len(ps[0])) for source in sources]
    n_accepted, last = block_verification(ps, qs, drafted, rng)
    return Accepted(list(range(n_accepted + 1)), [*drafted[:n_accepted], last])


def is_typical(p: Probabilities, token: int, epsilon: float = EPSILON, delta: float = DELTA) -> bool:
    """Typical acceptance (Medusa, arXiv 2401.10774): whether p(token) > min(epsilon, delta * exp(-H)).

    H is the entropy of p in nats.
    """
    likely = p[p > 0]
    entropy = -float((likely * np.log(likely)).sum())
    return bool(p[token] > min(epsilon, delta * math.exp(-entropy)))


def walk_typical(
    tree: TokenTree,
    _proposals: Sequence[Proposal | None],
    probabilities: NodeProbabilities,
    rng: np.random.Generator,
) -> Accepted:
    """LOSSY: the longest path of typical tokens, then a token drawn from the target's distribution after it.

    Of paths with the same length the likeliest by the target is taken, as in Medusa.
    """
    tokens: dict[int, list[int]] = {ROOT: []}
    likelihoods = {ROOT: 0.0}
    ends = {ROOT: probabilities(ROOT, [])}
    for node in range(1, len(tree)):  # parents come before their children
        parent, token = int(tree.parents[node]), int(tree.tokens[node])
        if parent in tokens and is_typical(ends[parent], token):
            tokens[node] = [*tokens[parent], token]
            likelihoods[node] = likelihoods[parent] + math.log(ends[parent][token])
            ends[node] = probabilities(node, tokens[node])
    best = max(tokens, key=lambda node: (len(tokens[node]), likelihoods[node]))
    return Accepted(tree.path_to(best), [*tokens[best], draw(ends[best], rng)])
