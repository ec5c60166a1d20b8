"""The papers' rules: they accept tokens drawn at random by comparing the target's distribution with the draft's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from specrun.sampling import Sampler
from specrun.speculation.accept import AcceptanceRule, Accepted
from specrun.speculation.drafter import Draft, Drafter
from specrun.speculation.drafters.sequoia import StaticDrafter
from specrun.speculation.drafters.specexec import specexec
from specrun.speculation.method import ACCEPTANCE, DRAFT, Drafting, Method, chain_shape
from specrun.speculation.papers.growers import (
    Draw,
    DrawnDraft,
    Proposal,
    SampledDrafter,
    doubling,
    forked,
    generator,
)
from specrun.speculation.tree import ROOT, TokenTree

Probabilities = NDArray[np.float64]  # float64[n_vocab], not negative, with the sum 1
NodeRule = Callable[[Probabilities, Probabilities, Sequence[int], Generator], tuple[int, bool]]
"""(target's p, draft's q, draws in their order, rng) -> (token to commit, distributed as p, whether it is a draw).

Independent draws may repeat a token. The number of draws must not depend on what was drawn."""
NodeProbabilities = Callable[[int, Sequence[int]], Probabilities]
"""(node, tokens of the path from below the root to the node) -> the target's distribution after the node."""
Proposals = Sequence[Proposal | None]  # of each node of a tree
AcceptTree = Callable[[TokenTree, Proposals, NodeProbabilities, Generator], Accepted]
"""(tree, its proposals, the target's distributions, rng) -> what is accepted."""


def residual(p: Probabilities, q: NDArray[np.float64]) -> Probabilities:
    """max(p - q, 0), normalised: what to sample from after a draw from q was rejected. It is p where p - q is nowhere
    positive, by rounding. q: float64[n_vocab], not negative, with any sum.
    """
    rest = np.maximum(p - q, 0.0)
    total = rest.sum()
    return rest / total if total > 0 else p


def draw(p: Probabilities, rng: Generator) -> int:
    """A token drawn from p. Rounding of the sum of p never leads to a token of probability 0."""
    cumulative = np.cumsum(p)
    return int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))


def multi_step(p: Probabilities, q: Probabilities, draws: Sequence[int], rng: Generator) -> tuple[int, bool]:
    """Independent draws, each against the residual that those before it leave (SpecInfer, arXiv 2305.09781). A single
    draw is speculative sampling (arXiv 2211.17192, 2302.01318).
    """
    for token in draws:
        if rng.random() * q[token] < p[token]:  # u < p/q without the division, which may overflow
            return token, True
        p = residual(p, q)
    return draw(p, rng), False


def sequoia(p: Probabilities, q: Probabilities, draws: Sequence[int], rng: Generator) -> tuple[int, bool]:
    """Draws from q without replacement (RSD, arXiv 2402.14160), and once all tokens of q are drawn, uniformly from the
    others (Sequoia, arXiv 2402.12374): each is tried as a draw from q without the tokens before it.
    """
    rest, untried = q.copy(), np.ones_like(q)
    for token in draws:
        rest = rest if rest.any() else untried.copy()
        now = rest / rest.sum()
        if rng.random() * now[token] < p[token]:
            return token, True
        p = residual(p, now)
        rest[token] = untried[token] = 0.0
    return draw(p, rng), False


def k_seq(p: Probabilities, q: Probabilities, draws: Sequence[int], rng: Generator) -> tuple[int, bool]:
    """The first of k independent draws with u < p / (gamma q), else the residual (SpecTr, arXiv 2310.15141)."""
    if not draws:
        return draw(p, rng), False
    gamma, ratio = _gamma(p, q, len(draws))
    for token in draws:
        if rng.random() * gamma * q[token] < p[token]:
            return token, True
    return draw(residual(p, ratio * np.minimum(q, p / gamma)), rng), False


def _gamma(p: Probabilities, q: Probabilities, k: int) -> tuple[float, float]:
    """(gamma, ratio(gamma)) for the least gamma in [1, k] at which the residual is nowhere negative: where
    ratio(gamma) = (1 - (1 - beta)^k) / beta, with beta = sum(min(q, p / gamma)), is at most gamma. As it never falls
    with gamma, its value lies between gamma and the root, which speeds up the bisection.
    """
    shared = np.flatnonzero((p > 0) & (q > 0))

    def ratio(gamma: float) -> float:  # as a geometric sum, which is exact for small beta and defined for 0
        rejected = max(1.0 - float(np.minimum(q[shared], p[shared] / gamma).sum()), 0.0)
        return sum(rejected**i for i in range(k))

    low, high = 1.0, float(k)
    while high - low > 1e-6:  # a coarser one costs acceptance, not exactness
        middle = (low + high) / 2
        bound = ratio(middle)
        low, high = (low, bound) if bound <= middle else (bound, high)
    return high, ratio(high)


def rule_of(walk: AcceptTree) -> AcceptanceRule:
    """The rule of a paper that accepts `walk` of a tree."""

    def accept(draft: Draft, rows: NDArray[np.float32], sampler: Sampler, tokens: Sequence[int]) -> Accepted:
        recent = sampler.recent(tokens)

        def probabilities(node: int, committed: Sequence[int]) -> Probabilities:
            return sampler.distribution(rows[node], [*recent, *committed]).dense(sampler.n_vocab)

        proposals = draft.proposals if isinstance(draft, DrawnDraft) else (None,) * len(draft.tree)
        return walk(draft.tree, proposals, probabilities, generator(sampler.parameters.seed, len(tokens), 2))

    return accept


def by_node(rule: NodeRule) -> AcceptTree:
    """The acceptance rule that goes from the root on to the child whose token `rule` accepts, until it accepts none.

    After a node without a proposal a token of the target's distribution is drawn. A draw whose child was cut from the
    tree must stay in the proposal's `draws`, or the result is biased; if accepted, it ends the walk.
    """

    def walk(tree: TokenTree, proposals: Proposals, probabilities: NodeProbabilities, rng: Generator) -> Accepted:
        path, tokens = [ROOT], list[int]()
        while True:
            p, proposal = probabilities(path[-1], tokens), proposals[path[-1]]
            q, draws = (proposal.dense(len(p)), proposal.draws) if proposal else (p, ())
            token, accepted = rule(p, q, draws, rng)
            child = tree.child_with_token(path[-1], token) if accepted else None
            tokens.append(token)
            if child is None:
                return Accepted(path, tokens)
            path.append(child)

    return walk


def walk_block(tree: TokenTree, proposals: Proposals, probabilities: NodeProbabilities, rng: Generator) -> Accepted:
    """Block verification (arXiv 2403.10444): a chain accepted or rejected as a whole. A likely token makes up for an
    unlikely one before it; no rule for a single chain accepts more.

    The chain may have been cut to a length, but not because of its tokens. Raises ValueError for a tree that is not a
    chain of drawn tokens.
    """
    drafted = tree.tokens[1:].tolist()
    drawn = [proposal for proposal in proposals[: len(drafted)] if proposal is not None]
    if tree.depth != len(drafted) or [proposal.draws for proposal in drawn] != [(token,) for token in drafted]:
        raise ValueError("block verification needs a chain, every token of it drawn from the draft's distribution")
    ps = [probabilities(node, drafted[:node]) for node in range(len(tree))]
    qs = [proposal.dense(len(ps[0])) for proposal in drawn]
    n_accepted, reach_accepted = 0, 1.0
    reach = 1.0  # chance that all tokens up to here are accepted, given these tokens
    for i, token in enumerate(drafted, start=1):
        share, chance_drawn = reach * float(ps[i - 1][token]), float(qs[i - 1][token])
        reach = chance = 1.0 if share >= chance_drawn else share / chance_drawn
        if i < len(drafted) and reach < 1.0:  # at 1 it is accepted, which covers p == q, where the quotient is 0/0
            rest = float(np.maximum(reach * ps[i] - qs[i], 0.0).sum())
            chance = rest / (rest + 1.0 - reach)
        # There is no early end: the last token that passes counts, even after failed ones.
        if rng.random() < chance:
            n_accepted, reach_accepted = i, reach
    p = ps[n_accepted]
    last = draw(p if n_accepted == len(drafted) else residual(reach_accepted * p, qs[n_accepted]), rng)
    return Accepted(list(range(n_accepted + 1)), [*drafted[:n_accepted], last])


def is_typical(p: Probabilities, token: int) -> bool:
    """Typical acceptance (Medusa, arXiv 2401.10774): p(token) > min(epsilon, delta * exp(-H)), H being p's entropy,
    with the defaults of Medusa's code; the paper uses delta = sqrt(epsilon).
    """
    likely = p[p > 0]
    entropy = -float((likely * np.log(likely)).sum())
    return bool(p[token] > min(0.09, 0.3 * math.exp(-entropy)))


def walk_typical(tree: TokenTree, _proposals: Proposals, probabilities: NodeProbabilities, rng: Generator) -> Accepted:
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


def _rule(name: str, paper: str, pays: str, draws: Draw, walk: AcceptTree, **more: Any) -> Method:
    def drafter(drafting: Drafting) -> Drafter:
        # Greedily there is nothing to draw: the rules take the child that is the target's own choice, if there is one,
        # so the best candidates are the best draws.
        source, shape = drafting.need_source(), drafting.need_shape()
        return SampledDrafter(source, shape, draws) if drafting.temperature else StaticDrafter(source, shape)

    return Method(name, "acceptance rule", paper, pays, drafter, rule_of(walk), **more)


RULES = (
    _rule(
        "speculative-sampling", "Leviathan et al., arXiv 2211.17192; Chen et al., 2302.01318",
        "where chain does, but less, because target and draft do not share their noise",
        "independent", by_node(multi_step), shape=chain_shape,
    ),
    _rule(
        "block-verification", "Sun et al., arXiv 2403.10444", "wherever speculative-sampling does, and never less",
        "independent", walk_block, shape=chain_shape,
    ),
    _rule(
        "specinfer", "SpecInfer's multi-step rule, arXiv 2305.09781; multi-candidate, 2401.06706",
        "where rsd does, if the draft is right often enough for deep paths", "independent", by_node(multi_step),
        budget=21, shape=lambda budget, depth: forked(budget, depth, stem=2),
    ),
    _rule(
        "rsd", "Recursive rejection, arXiv 2402.14160; multi-candidate without replacement, 2401.06706",
        "where large passes cost little and shared noise is not wanted", "without replacement", by_node(sequoia),
        shape=doubling,
    ),
    _rule(
        "spectr", "SpecTr's k-SEQ, arXiv 2310.15141", "where specinfer does, if the very next token is in doubt",
        "independent", by_node(k_seq), budget=17, shape=forked,
    ),
    _rule(
        "sequoia", "Sequoia, arXiv 2402.12374", "where large passes cost little and shared noise is not wanted",
        "without replacement, then uniform", by_node(sequoia), needs=(DRAFT, ACCEPTANCE),
    ),
    Method(
        "typical", "acceptance rule", "Medusa's typical acceptance, arXiv 2401.10774",
        "where the text may differ from the target's, because it is lossy", specexec,
        rule_of(walk_typical), lossless=False,
    ),
)  # fmt: skip
