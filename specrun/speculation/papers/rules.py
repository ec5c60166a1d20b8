"""The papers' acceptance rules: for one node, for a whole tree, and as the `PaperRule` that the rest of specrun knows.

Multi-candidate speculative sampling (arXiv 2401.06706) with and without replacement is `multi_step` and `sequoia`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specrun.sampling import Sampler
from specrun.speculation.accept import Accepted
from specrun.speculation.drafter import Draft
from specrun.speculation.papers.sampled import DrawnDraft, Proposal, generator
from specrun.speculation.tree import ROOT, TokenTree

Probabilities = NDArray[np.float64]
"""float64[n_vocab], not negative, with the sum 1."""

NodeRule = Callable[[Probabilities, Probabilities, Sequence[int], np.random.Generator], tuple[int, bool]]
"""(target's p, draft's q, draws in their order, rng) -> (token to commit, distributed as p, whether it is a draw).

Independent draws may repeat a token. The number of draws must not depend on what was drawn.
"""

NodeProbabilities = Callable[[int, Sequence[int]], Probabilities]
"""(node, tokens of the path from below the root to the node) -> the target's distribution after the node."""

AcceptTree = Callable[[TokenTree, Sequence[Proposal | None], NodeProbabilities, np.random.Generator], Accepted]
"""(tree, proposal for each node or None, the target's distributions, rng) -> what is accepted."""


def residual(p: Probabilities, q: NDArray[np.float64]) -> Probabilities:
    """max(p - q, 0), normalised: what to sample from after a draw from q was rejected. It is p where p - q is nowhere
    positive, by rounding. q: float64[n_vocab], not negative, with any sum.
    """
    rest = np.maximum(p - q, 0.0)
    total = rest.sum()
    return rest / total if total > 0 else p


def draw(p: Probabilities, rng: np.random.Generator) -> int:
    """Draw a token from p. Rounding of the sum of p never leads to a token of probability 0."""
    cumulative = np.cumsum(p)
    return int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))


def multi_step(p: Probabilities, q: Probabilities, draws: Sequence[int], rng: np.random.Generator) -> tuple[int, bool]:
    """Independent draws, each against the residual that those before it leave (SpecInfer, arXiv 2305.09781). A single
    draw is speculative sampling (arXiv 2211.17192, 2302.01318).
    """
    return _try_in_turn(p, ((token, q) for token in draws), rng)


def sequoia(p: Probabilities, q: Probabilities, draws: Sequence[int], rng: np.random.Generator) -> tuple[int, bool]:
    """Draws from q without replacement (RSD, arXiv 2402.14160), and once all tokens of q are drawn, uniformly from the
    others (Sequoia, arXiv 2402.12374): each is tried as a draw from q without the tokens before it.
    """

    def candidates() -> Iterator[tuple[int, Probabilities]]:
        rest, untried = q.copy(), np.ones_like(q)
        for token in draws:
            if not rest.any():
                rest = untried.copy()
            yield token, rest / rest.sum()
            rest[token] = untried[token] = 0.0

    return _try_in_turn(p, candidates(), rng)


def _try_in_turn(
    p: Probabilities, candidates: Iterable[tuple[int, Probabilities]], rng: np.random.Generator
) -> tuple[int, bool]:
    """candidates: each token with the distribution that it was drawn from, given those before it."""
    for token, q in candidates:
        if rng.random() * q[token] < p[token]:  # u < p/q without the division, which may overflow
            return token, True
        p = residual(p, q)
    return draw(p, rng), False


_PRECISION = 1e-6  # of gamma; a coarser one costs acceptance, not exactness


def k_seq(p: Probabilities, q: Probabilities, draws: Sequence[int], rng: np.random.Generator) -> tuple[int, bool]:
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
    while high - low > _PRECISION:
        middle = (low + high) / 2
        bound = ratio(middle)
        low, high = (low, bound) if bound <= middle else (bound, high)
    return high, ratio(high)


@dataclass(frozen=True)
class PaperRule:
    """A rule that compares distributions, as an `AcceptanceRule`. walk: what it accepts of a tree."""

    walk: AcceptTree
    lossless: bool = True

    def accept(self, draft: Draft, rows: NDArray[np.float32], sampler: Sampler, tokens: Sequence[int]) -> Accepted:
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
        path: list[int] = [ROOT]
        tokens: list[int] = []
        while True:
            p, proposal = probabilities(path[-1], tokens), proposals[path[-1]]
            q, draws = (proposal.dense(len(p)), proposal.draws) if proposal else (p, ())
            token, accepted = rule(p, q, draws, rng)
            child = tree.child_with_token(path[-1], token) if accepted else None
            tokens.append(token)
            if child is None:
                return Accepted(path, tokens)
            path.append(child)

    return accept


def walk_block(
    tree: TokenTree, proposals: Sequence[Proposal | None], probabilities: NodeProbabilities, rng: np.random.Generator
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


def block_verification(
    ps: Sequence[Probabilities], qs: Sequence[Probabilities], tokens: Sequence[int], rng: np.random.Generator
) -> tuple[int, int]:
    """A chain accepted or rejected as a whole (arXiv 2403.10444): (number of accepted tokens, token after them).

    A likely token makes up for an unlikely one before it; no rule for a single chain accepts more.

    tokens: the L tokens of a chain, tokens[i] drawn from qs[i]. ps: the target's L + 1 distributions, ps[i] that of
    the token at place i. L may depend on the drawn tokens, but not on tokens that were drawn and then left out.
    """
    n_accepted, reach_accepted = 0, 1.0
    reach = 1.0  # chance that all tokens up to here are accepted, given these tokens
    for i, token in enumerate(tokens, start=1):
        share, drawn = reach * float(ps[i - 1][token]), float(qs[i - 1][token])
        reach = 1.0 if share >= drawn else share / drawn
        # There is no early end: the last token that passes counts, even after failed ones.
        if rng.random() < (reach if i == len(tokens) else _chance(reach, ps[i], qs[i])):
            n_accepted, reach_accepted = i, reach
    if n_accepted == len(tokens):
        return n_accepted, draw(ps[-1], rng)
    return n_accepted, draw(residual(reach_accepted * ps[n_accepted], qs[n_accepted]), rng)


def _chance(reach: float, p: Probabilities, q: Probabilities) -> float:
    """Chance to accept up to a token that is not the last. p, q: the distributions of the token after it."""
    if reach == 1.0:
        return 1.0  # this covers p == q, where the quotient is 0/0; a later token is accepted then
    rest = float(np.maximum(reach * p - q, 0.0).sum())
    return rest / (rest + 1.0 - reach)


EPSILON, DELTA = 0.09, 0.3  # the defaults of Medusa's code; the paper uses delta = sqrt(epsilon)


def is_typical(p: Probabilities, token: int, epsilon: float = EPSILON, delta: float = DELTA) -> bool:
    """Typical acceptance (Medusa, arXiv 2401.10774): p(token) > min(epsilon, delta * exp(-H)), H being p's entropy."""
    likely = p[p > 0]
    entropy = -float((likely * np.log(likely)).sum())
    return bool(p[token] > min(epsilon, delta * math.exp(-entropy)))


def walk_typical(
    tree: TokenTree, _proposals: Sequence[Proposal | None], probabilities: NodeProbabilities, rng: np.random.Generator
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
