"""The papers' acceptance rules: for one node, for a whole tree, and as the `PaperRule` that the rest of specrun knows.

`multi_step`: independent candidates (SpecInfer, arXiv 2305.09781). With a single candidate it is speculative sampling
(Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318).
`sequoia`: candidates without replacement, then uniformly from the rest (arXiv 2402.12374). Without the latter it is
recursive rejection (RSD, arXiv 2402.14160).
`k_seq`: independent candidates, each accepted or rejected by the same test (SpecTr, arXiv 2310.15141).

Multi-candidate speculative sampling (arXiv 2401.06706) with and without replacement is the first and the second.
`by_node` applies them along a tree. `walk_block` takes a chain as a whole; `walk_typical` is the only lossy rule.
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


def residual(p: Probabilities, q: NDArray[np.float64]) -> Probabilities:
    """max(p - q, 0), normalised: the distribution to sample from after a draw from q was rejected.

    q: float64[n_vocab], not negative, with any sum. If p - q is nowhere positive, by rounding where both are equal, it
    is p.
    """
    rest = np.maximum(p - q, 0.0)
    total = rest.sum()
    return rest / total if total > 0 else p


def draw(p: Probabilities, rng: np.random.Generator) -> int:
    """Draw a token from p. Rounding of the sum of p never leads to a token of probability 0."""
    cumulative = np.cumsum(p)
    return int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))


def multi_step(p: Probabilities, q: Probabilities, draws: Sequence[int], rng: np.random.Generator) -> tuple[int, bool]:
    """A `NodeRule`: try the draws in turn, each against the residual that the rejected draws before it leave.

    draws: independent draws from q, duplicates included; their number must not depend on what was drawn. The chance to
        accept a single draw is sum(min(p, q)).
    """
    return _try_in_turn(p, ((token, q) for token in draws), rng)


def sequoia(p: Probabilities, q: Probabilities, draws: Sequence[int], rng: np.random.Generator) -> tuple[int, bool]:
    """A `NodeRule`: try the draws in turn, each as a draw from q without the tokens before it.

    draws: distinct tokens in the order drawn: from q without replacement, and once all tokens of q are drawn,
    uniformly from the other tokens of the target's vocabulary.
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
    """Returns (token to commit, whether it is an accepted candidate); the token is distributed as p.

    candidates: each token with q, the distribution that it was drawn from given the candidates before it. It is
    accepted with probability min(1, p/q). If it is rejected, p becomes the residual of p and q; the token is drawn
    from the last residual if all candidates are rejected.
    """
    for token, q in candidates:
        # This is u < p/q without the division, which may overflow.
        if rng.random() * q[token] < p[token]:
            return token, True
        p = residual(p, q)
    return draw(p, rng), False


_PRECISION = 1e-6  # of gamma; a coarser one costs acceptance, not exactness


def k_seq(p: Probabilities, q: Probabilities, draws: Sequence[int], rng: np.random.Generator) -> tuple[int, bool]:
    """A `NodeRule`: accept the first draw with u < p / (gamma q), else draw from the residual.

    draws: k independent draws from q, duplicates included; k must not depend on what was drawn. The probability to
    accept one is 1 - (1 - beta)^k with beta = sum(min(q, p / gamma)).
    """
    if not draws:
        return draw(p, rng), False
    gamma, ratio = _gamma(p, q, len(draws))
    for token in draws:
        if rng.random() * gamma * q[token] < p[token]:
            return token, True
    return draw(residual(p, ratio * np.minimum(q, p / gamma)), rng), False


def _gamma(p: Probabilities, q: Probabilities, k: int) -> tuple[float, float]:
    """(gamma, ratio(gamma)) for the least gamma in [1, k] at which the residual is nowhere negative.

    That is where ratio(gamma) = (1 - (1 - beta)^k) / beta is at most gamma. As ratio(gamma) never falls with gamma, its
    value lies between gamma and the root, which speeds up the bisection. The end where the condition holds is returned.
    """
    shared = np.flatnonzero((p > 0) & (q > 0))
    p, q = p[shared], q[shared]
    low, high = 1.0, float(k)
    while high - low > _PRECISION:
        middle = (low + high) / 2
        bound = _ratio(p, q, middle, k)
        low, high = (low, bound) if bound <= middle else (bound, high)
    return high, _ratio(p, q, high, k)


def _ratio(p: NDArray[np.float64], q: NDArray[np.float64], gamma: float, k: int) -> float:
    """(1 - (1 - beta)^k) / beta as a geometric sum, which is exact for small beta and defined for 0."""
    rejected = max(1.0 - float(np.minimum(q, p / gamma).sum()), 0.0)
    return sum(rejected**i for i in range(k))


# The defaults of Medusa's code (posterior_threshold, posterior_alpha); the paper uses delta = sqrt(epsilon).
EPSILON = 0.09
DELTA = 0.3

NodeRule = Callable[[Probabilities, Probabilities, Sequence[int], np.random.Generator], tuple[int, bool]]
"""(target's p, draft's q, candidates in the order drawn, rng) -> (token to commit, whether it is a candidate)."""

NodeProbabilities = Callable[[int, Sequence[int]], Probabilities]
"""(node, tokens of the path from below the root to the node) -> the target's distribution after the node."""

AcceptTree = Callable[[TokenTree, Sequence[Proposal | None], NodeProbabilities, np.random.Generator], Accepted]
"""(tree, proposal for each node or None, the target's distributions, rng) -> what is accepted."""


@dataclass(frozen=True)
class PaperRule:
    """A rule that compares distributions, as an `AcceptanceRule`."""

    walk: AcceptTree  # what it accepts of a tree
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

    Token-by-token rules end at the first rejection. Here a likely token makes up for an unlikely one before it, so the
    expected accepted length is never lower; the paper proves that no rule for a single chain reaches a higher one.

    tokens: the L tokens of a chain, tokens[i] drawn from qs[i]. ps: the target's L + 1 distributions, ps[i] that of
    the token at place i. L may depend on the drawn tokens, but not on tokens that were drawn and then left out.
    """
    n_accepted, reach_accepted = 0, 1.0
    reach = 1.0  # chance that all tokens up to here are accepted, given these tokens
    for i, token in enumerate(tokens, start=1):
        share = reach * float(ps[i - 1][token])
        drawn = float(qs[i - 1][token])
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
