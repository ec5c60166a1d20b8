"""From the rule at one node to the accepted path of a tree."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from specrun.speculation.papers.block_verification import block_verification
from specrun.speculation.papers.distributions import Probabilities, draw
from specrun.speculation.papers.typical import is_typical
from specrun.speculation.proposal import Proposal
from specrun.speculation.sample_and_match import Accepted
from specrun.speculation.tree import ROOT, TokenTree

# (target's distribution p, draft's q over the same vocabulary, candidates in the order drawn, rng)
# -> (the token to commit, whether it is a candidate that was accepted)
NodeRule = Callable[[Probabilities, Probabilities, Sequence[int], np.random.Generator], tuple[int, bool]]
# (node, tokens after the root up to and with it) -> the target's distribution after the node
NodeProbabilities = Callable[[int, Sequence[int]], Probabilities]
# (tree, proposals by node, None where nothing was drawn, the target's distributions, rng) -> what is accepted
AcceptTree = Callable[[TokenTree, Sequence[Proposal | None], NodeProbabilities, np.random.Generator], Accepted]


def by_node(rule: NodeRule) -> AcceptTree:
    """Apply `rule` at every node from the root on, as long as it accepts."""

    def accept(
        tree: TokenTree,
        proposals: Sequence[Proposal | None],
        probabilities: NodeProbabilities,
        rng: np.random.Generator,
    ) -> Accepted:
        return walk(tree, proposals, probabilities, rule, rng)

    return accept


def walk(
    tree: TokenTree,
    proposals: Sequence[Proposal | None],
    probabilities: NodeProbabilities,
    rule: NodeRule,
    rng: np.random.Generator,
) -> Accepted:
    """From the root, go to the child whose token `rule` accepts; the first token that is no accepted one ends it.

    proposals: one per node. A node without one gets a token of the target's distribution. A draw whose child was cut
    from the tree must stay in `draws`: accepted, it is committed and ends the pass, and nothing is biased.
    """
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


def walk_block(
    tree: TokenTree,
    proposals: Sequence[Proposal | None],
    probabilities: NodeProbabilities,
    rng: np.random.Generator,
) -> Accepted:
    """Block verification of a chain, which may have been cut by its length but not by its tokens.

    Raises ValueError for a tree that is no chain of drawn tokens.
    """
    drafted = tree.tokens[1:].tolist()
    sources = [proposal for proposal in proposals[: len(drafted)] if proposal is not None]
    if tree.depth != len(drafted) or [source.draws for source in sources] != [(token,) for token in drafted]:
        raise ValueError("block verification needs a chain, every token of it drawn from the draft's distribution")
    ps = [probabilities(node, drafted[:node]) for node in range(len(tree))]
    qs = [source.dense(len(ps[0])) for source in sources]
    n_accepted, last = block_verification(ps, qs, drafted, rng)
    return Accepted(list(range(n_accepted + 1)), [*drafted[:n_accepted], last])


def walk_typical(
    tree: TokenTree,
    _proposals: Sequence[Proposal | None],
    probabilities: NodeProbabilities,
    rng: np.random.Generator,
) -> Accepted:
    """LOSSY: the longest path of typical tokens, however they were drafted, then a token of the target's after it.

    Of paths of the same length the target's likeliest is taken, as Medusa does.
    """
    tokens: dict[int, list[int]] = {ROOT: []}
    likelihoods = {ROOT: 0.0}
    ends = {ROOT: probabilities(ROOT, [])}
    for node in range(1, len(tree)):  # depth first, so every parent has been seen
        parent, token = int(tree.parents[node]), int(tree.tokens[node])
        if parent in tokens and is_typical(ends[parent], token):
            tokens[node] = [*tokens[parent], token]
            likelihoods[node] = likelihoods[parent] + math.log(ends[parent][token])
            ends[node] = probabilities(node, tokens[node])
    best = max(tokens, key=lambda node: (len(tokens[node]), likelihoods[node]))
    return Accepted(tree.path_to(best), [*tokens[best], draw(ends[best], rng)])
