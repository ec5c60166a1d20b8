"""Random trees through every acceptance rule: each rule keeps what it promises.

A toy target and a toy draft, whose next token depends on the last two, give the logits; the drafters, the sampler and
`accept` are those of the package. Vocabularies, distributions, sampling options, shapes and limits differ from tree to
tree. Whatever the rule, an accepted path is a path of the tree, and every committed token is one that the target may
write. Beyond that:

- sample and match, and every rule at temperature 0: the committed tokens are those of plain decoding with the same
  seed, and no child of the last node holds the last token;
- rules that keep the distribution: committed tokens are distributed as plain decoding's, by a chi-square test over all
  trees together. Tokens are counted in groups by how much more the draft likes them than the target does, because a
  wrong rule prefers what was drafted;
- typical acceptance, which is lossy: every accepted token is typical, and no longer path of the tree is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from specrun.sampling import Sampler, SamplingParameters
from specrun.speculation.accept import Accepted, accept
from specrun.speculation.drafter import Draft, DraftLimits, DraftNode, Logits
from specrun.speculation.growth import ModelCandidates
from specrun.speculation.method import ACCEPTANCE, DRAFT, Drafting, Method, Plan
from specrun.speculation.papers.rules import is_typical
from specrun.speculation.registry import METHODS
from specrun.speculation.tree import NO_PARENT, ROOT, TokenTree, TreeShape
from specrun.verifying.findings import chi_square_p_value
from tests.trees import random_tree

SAMPLE_AND_MATCH, GREEDY = "sample and match", "greedy"
# Rules that compare distributions, by the method that drafts for them.
SAMPLED = [name for name, method in METHODS.items() if method.rule]
LOSSY = [name for name in SAMPLED if not METHODS[name].lossless]
RULES = [SAMPLE_AND_MATCH, GREEDY, *SAMPLED]

_MATCHED = [method for method in METHODS.values() if method.needs == (DRAFT,) and not method.rule]
_N_ROWS = 1 << 12
_N_GROUPS = 6  # of tokens that are counted together
_LENGTH = 3  # tokens of each text that are counted


@dataclass
class Outcome:
    """What the trees of one rule gave.

    trees: number of trees. nodes: their nodes. accepted: tokens that were accepted. observed, expected:
    float64[_LENGTH, _N_GROUPS], tokens by their place in the text and their group, for rules that keep a distribution.
    """

    trees: int = 0
    nodes: int = 0
    accepted: int = 0
    observed: np.ndarray = field(default_factory=lambda: np.zeros((_LENGTH, _N_GROUPS)))
    expected: np.ndarray = field(default_factory=lambda: np.zeros((_LENGTH, _N_GROUPS)))

    @property
    def p_value(self) -> float:
        """Probability of counts as far from the target's distribution as these, of the least likely place."""
        return min(
            chi_square_p_value(observed, expected)
            for observed, expected in zip(self.observed, self.expected, strict=True)
        )


def through(rule: str, n_trees: int, seed: int = 0) -> Outcome:
    """Send `n_trees` random trees through a rule. Raises AssertionError if one breaks what the rule promises."""
    rng = np.random.default_rng([seed, RULES.index(rule)])
    outcome = Outcome()
    for _ in range(n_trees):
        _one_tree(rule, rng, outcome)
    return outcome


class _Toy:
    """Logits after a text, which depend on its last two tokens."""

    def __init__(self, rng: np.random.Generator, n_vocab: int) -> None:
        self.n_vocab = n_vocab
        self._table = rng.standard_normal((64, n_vocab)).astype(np.float32) * np.float32(rng.choice([0.5, 2.0, 6.0]))
        self._table += rng.standard_normal(n_vocab).astype(np.float32)

    def row(self, text: Sequence[int]) -> Logits:
        return self._table[hash(tuple(text[-2:])) % len(self._table)]

    def mixed(self, other: _Toy, share: float) -> _Toy:
        """A toy that resembles this one."""
        made = object.__new__(_Toy)
        made.n_vocab = self.n_vocab
        made._table = self._table * np.float32(1 - share) + other._table * np.float32(share)
        return made


class _ToyDraft:
    """The toy as a draft model, with room for everything."""

    def __init__(self, toy: _Toy) -> None:
        self._toy = toy
        self._texts: dict[int, list[int]] = {}

    @property
    def n_vocab(self) -> int:
        return self._toy.n_vocab

    def start(self, tokens: Sequence[int]) -> Logits:
        self._texts = {ROOT: list(tokens)}
        return self._toy.row(tokens)

    def expandable(self, parents: Sequence[int], width: int) -> Sequence[int]:
        return range(min(len(parents), width))

    def expand(self, nodes: Sequence[DraftNode]) -> Logits:
        for node in nodes:
            self._texts[node.id] = [*self._texts[node.parent], node.token]
        return np.array([self._toy.row(self._texts[node.id]) for node in nodes])


def _one_tree(rule: str, rng: np.random.Generator, outcome: Outcome) -> None:
    n_vocab = int(rng.integers(2, 40))
    target = _Toy(rng, n_vocab)
    draft = target.mixed(_Toy(rng, n_vocab), float(rng.choice([0.0, 0.2, 0.5, 1.0])))
    text = rng.integers(n_vocab, size=int(rng.integers(1, 6))).tolist()
    sampler = Sampler(_parameters(rule, rng), n_vocab)
    plan = _plan(rule, rng)
    limits = DraftLimits(int(rng.integers(1, 26)), int(rng.integers(1, 7)), int(rng.integers(1, 9)), 1000)
    if plan.method.rule is None and rng.random() < 0.3:
        proposed = Draft(_any_tree(rng, n_vocab, text[-1], target.row(text)))
    else:
        drafter = Drafting(plan, sampler.parameters.temperature, ModelCandidates(_ToyDraft(draft), sampler)).drafter()
        proposed = drafter.draft(text, limits) if drafter else Draft(TokenTree.root_only(text[-1]))
        assert len(proposed.tree) <= limits.budget
        assert proposed.tree.depth <= limits.depth
    tree = proposed.tree
    check_order(tree)
    texts = [[*text, *tree.tokens[tree.path_to(node)[1:]].tolist()] for node in range(len(tree))]
    rows = np.array([target.row(one) for one in texts])
    accepted = accept(plan.method.rule, proposed, rows, sampler, text)
    outcome.trees += 1
    outcome.nodes += len(tree)
    outcome.accepted += len(accepted.tokens) - 1
    check_path(tree, accepted)
    _check_possible(accepted, target, sampler, text)
    if plan.method.rule is None or rule == GREEDY:
        _check_plain(accepted, tree, target, sampler, text)
    elif not plan.method.lossless:
        _check_typical(accepted, tree, texts, target, sampler)
    if rule in SAMPLED:
        _count(accepted, target, draft, sampler, text, rng, outcome)


def _parameters(rule: str, rng: np.random.Generator) -> SamplingParameters:
    penalized = rng.random() < 0.2
    return SamplingParameters(
        temperature=0.0 if rule == GREEDY else float(rng.choice([0.3, 0.8, 1.0, 1.7])),
        top_k=int(rng.choice([0, 0, 3, 40])),
        top_p=float(rng.choice([1.0, 1.0, 0.8])),
        min_p=float(rng.choice([0.0, 0.0, 0.1])),
        repeat_penalty=1.3 if penalized else 1.0,
        presence_penalty=0.4 if penalized else 0.0,
        repeat_last_n=4,
        seed=int(rng.integers(2**62)),
    )


def _plan(rule: str, rng: np.random.Generator) -> Plan:
    if rule in SAMPLED:
        method = METHODS[rule]
    else:
        method = _method(rng, [*_MATCHED, *map(METHODS.__getitem__, SAMPLED)] if rule == GREEDY else _MATCHED)
    plan = method.plan(depth=int(rng.integers(1, 6))) if method.is_chain else method.plan(int(rng.integers(2, 26)))
    if ACCEPTANCE not in method.needs:
        return plan
    return plan.shaped(TreeShape.branching(rng.integers(1, 4, size=int(rng.integers(1, 4))).tolist()))


def _method(rng: np.random.Generator, methods: Sequence[Method]) -> Method:
    return methods[int(rng.integers(len(methods)))]


def _any_tree(rng: np.random.Generator, n_vocab: int, root: int, row: Logits) -> TokenTree:
    """A tree that no drafter would draw, often with the target's own choice below the root."""
    tree = random_tree(rng, int(rng.integers(1, min(n_vocab, 26) + 1)), n_vocab, root)
    likeliest = int(row.argmax())
    if rng.random() < 0.5 or tree.child_with_token(ROOT, likeliest) is not None:
        return tree
    return TokenTree.build(
        [*tree.tokens.tolist(), likeliest], [*tree.parents.tolist(), ROOT], [*tree.scores.tolist(), -1e-9]
    )


def check_order(tree: TokenTree) -> None:
    """The tree is one, in depth-first order, and its masks are those of brute force."""
    parents = tree.parents.tolist()
    assert parents[ROOT] == NO_PARENT
    ancestors: list[set[int]] = []
    for node, parent in enumerate(parents):
        assert NO_PARENT <= parent < node or node == ROOT
        ancestors.append({node} | (ancestors[parent] if node else set()))
    leaves = [node for node in range(len(tree)) if node not in parents]
    siblings = [(parent, token) for parent, token in zip(parents, tree.tokens.tolist(), strict=True)]
    assert len(set(siblings)) == len(tree), "two children of a node hold the same token"
    for node in range(len(tree)):
        below = {i for i, leaf in enumerate(leaves) if node in ancestors[leaf]}
        first, count = int(tree.first_leaves[node]), int(tree.leaf_counts[node])
        assert below == set(range(first, first + count)), "leaves below a node have no consecutive numbers"


def check_path(tree: TokenTree, accepted: Accepted) -> None:
    """The accepted path is a path of the tree, and holds the committed tokens but the last."""
    assert accepted.path == tree.path_to(accepted.path[-1])
    assert accepted.tokens[:-1] == tree.tokens[accepted.path[1:]].tolist()


def _check_possible(accepted: Accepted, target: _Toy, sampler: Sampler, text: list[int]) -> None:
    """The target may write every committed token."""
    for i, token in enumerate(accepted.tokens):
        before = [*text, *accepted.tokens[:i]]
        assert token in sampler.distribution(target.row(before), sampler.recent(before)).tokens, "an impossible token"


def _check_plain(accepted: Accepted, tree: TokenTree, target: _Toy, sampler: Sampler, text: list[int]) -> None:
    """The committed tokens are plain decoding's, and no more of them could have been accepted."""
    written = list(text)
    for token in accepted.tokens:
        plain = sampler.sample(target.row(written), len(written), sampler.recent(written))
        assert token == plain, f"{token} was committed, and plain decoding writes {plain}"
        written.append(token)
    assert tree.child_with_token(accepted.path[-1], accepted.tokens[-1]) is None


def _check_typical(accepted: Accepted, tree: TokenTree, texts: list[list[int]], target: _Toy, sampler: Sampler) -> None:
    """Every accepted token is typical, and no longer path consists of such tokens."""
    typical = {ROOT}
    for node in range(1, len(tree)):
        parent = int(tree.parents[node])
        p = sampler.distribution(target.row(texts[parent]), sampler.recent(texts[parent])).dense(sampler.n_vocab)
        if parent in typical and is_typical(p, int(tree.tokens[node])):
            typical.add(node)
    assert set(accepted.path) <= typical
    assert len(accepted.path) - 1 == max(int(tree.depths[node]) for node in typical)


def _count(
    accepted: Accepted,
    target: _Toy,
    draft: _Toy,
    sampler: Sampler,
    text: list[int],
    rng: np.random.Generator,
    outcome: Outcome,
) -> None:
    """Count the first tokens of the text that was begun with what was committed, and goes on by plain sampling."""
    written = list(text)
    for place in range(_LENGTH):
        recent = sampler.recent(written)
        p = sampler.distribution(target.row(written), recent).dense(sampler.n_vocab)
        q = sampler.distribution(draft.row(written), recent).dense(sampler.n_vocab)
        token = accepted.tokens[place] if place < len(accepted.tokens) else int(rng.choice(len(p), p=p))
        group = np.empty(len(p), np.int64)
        group[np.argsort(q - p, kind="stable")] = np.arange(len(p)) * _N_GROUPS // len(p)
        outcome.expected[place] += np.bincount(group, weights=p, minlength=_N_GROUPS)
        outcome.observed[place, group[token]] += 1
        written.append(token)
