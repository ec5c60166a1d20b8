"""Drafters against a draft model that is a table: what is proposed, in what order, within what bounds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from specrun.sampling import Sampler, SamplingParameters
from specrun.speculation.drafter import DraftLimits, DraftNode
from specrun.speculation.drafters.chain import ChainDrafter
from specrun.speculation.drafters.cost_aware import CostAwareDrafter
from specrun.speculation.drafters.specexec import SpecExecDrafter
from specrun.speculation.growth import ModelCandidates
from specrun.speculation.planning.costs import CostModel, CostTable, PassTime
from specrun.speculation.planning.guide import Guide, RunCosts
from specrun.speculation.tree import ROOT, TokenTree

N_VOCAB = 30
GREEDY = SamplingParameters(temperature=0)


class TableDraft:
    """A draft model whose logits are a function of the path, and which notes what it was asked.

    It forgets every node that it may forget.
    """

    n_vocab = N_VOCAB

    def __init__(self, seed: int, n_sequences: int = 256, spread: float = 2.0) -> None:
        self._seed = seed
        self._spread = spread
        self._n_sequences = n_sequences
        self._paths: dict[int, list[int]] = {}
        self._parents: list[int] = []
        self.passes: list[int] = []

    def logits(self, path: Sequence[int]) -> np.ndarray:
        rng = np.random.default_rng([self._seed, *path])
        return (self._spread * rng.standard_normal(N_VOCAB)).astype(np.float32)

    def start(self, tokens: Sequence[int]) -> np.ndarray:
        self._paths = {ROOT: [tokens[-1]]}
        self._parents = []
        self._open = {ROOT}
        self.passes = []
        return self.logits(self._paths[ROOT])

    def expandable(self, parents: Sequence[int], width: int) -> Sequence[int]:
        self._open &= set(parents)
        used = len(self._parents) - len(set(self._parents))
        places: list[int] = []
        for place, parent in enumerate(parents):
            if len(places) == width:
                break
            is_branch = parent in self._parents or parent in [parents[other] for other in places]
            if is_branch and used + 1 >= self._n_sequences:
                continue
            used += is_branch
            places.append(place)
        return places

    def expand(self, nodes: Sequence[DraftNode]) -> np.ndarray:
        self.passes.append(len(nodes))
        for node in nodes:
            assert node.id not in self._paths, "a node was expanded twice"
            assert node.parent in self._open, "no further child of this node was announced"
            self._open.add(node.id)
            self._paths[node.id] = [*self._paths[node.parent], node.token]
            self._parents.append(node.parent)
        return np.stack([self.logits(self._paths[node.id]) for node in nodes])


def limits(budget: int, depth: int, width: int = 1000, leaves: int = 256) -> DraftLimits:
    return DraftLimits(budget, depth, width, leaves)


def all_paths(draft: TableDraft, root: int, depth: int) -> dict[tuple[int, ...], float]:
    """Log probability of every path of up to `depth` tokens, by enumeration."""
    scores = {(root,): 0.0}
    level = dict(scores)
    for _ in range(depth):
        below = {}
        for path, score in level.items():
            row = draft.logits(path).astype(np.float64)
            logp = row - row.max() - np.log(np.exp(row - row.max()).sum())
            below |= {(*path, token): score + logp[token] for token in range(N_VOCAB)}
        scores |= below
        level = below
    return scores


def paths_of(tree: TokenTree) -> set[tuple[int, ...]]:
    return {tuple(tree.tokens[tree.path_to(node)].tolist()) for node in range(len(tree))}


@pytest.mark.parametrize("seed", range(5))
def test_specexec_keeps_the_most_probable_nodes_of_all(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specrun.speculation.growth.MAX_RANK", N_VOCAB)
    draft = TableDraft(seed, spread=3.0)
    tree = SpecExecDrafter(ModelCandidates(draft, Sampler(GREEDY, N_VOCAB))).draft([7], limits(12, 3)).tree
    everything = all_paths(draft, 7, 3)
    best = sorted(everything, key=lambda path: -everything[path])[:12]
    assert paths_of(tree) == set(best)
    for node in range(len(tree)):
        path = tuple(tree.tokens[tree.path_to(node)].tolist())
        assert tree.scores[node] == pytest.approx(everything[path])


@pytest.mark.parametrize("budget", [1, 2, 5, 64, 400])
@pytest.mark.parametrize("depth", [1, 2, 9])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_tree_stays_within_its_limits(budget: int, depth: int, temperature: float) -> None:
    sampler = Sampler(SamplingParameters(temperature=temperature, top_k=0, top_p=1, min_p=0), N_VOCAB)
    draft = TableDraft(1, n_sequences=8)
    tree = (
        SpecExecDrafter(ModelCandidates(draft, sampler)).draft([1, 2, 3], limits(budget, depth, width=6, leaves=8)).tree
    )
    assert tree.tokens[ROOT] == 3
    assert 1 <= len(tree) <= budget
    assert tree.depth <= depth
    assert tree.n_leaves <= 8
    assert all(n <= 6 for n in draft.passes)
    assert len(draft.passes) < max(depth, 1)
    for children in tree.children:
        assert len({int(tree.tokens[child]) for child in children}) == len(children)


def guide(target_ms: dict[int, float], draft_ms: float, rate: float) -> Guide:
    """Cost tables without any overhead, and a rate to beat in tokens a millisecond."""
    target = CostTable([PassTime(n, 64, ms) for n, ms in target_ms.items()])
    costs = CostModel(target, CostTable([PassTime(1, 64, draft_ms), PassTime(64, 64, draft_ms)]))
    return Guide(RunCosts.of(costs), rate=rate)


def cost_aware(draft: TableDraft, weighed: Guide, *bounds: int) -> TokenTree:
    source = ModelCandidates(draft, Sampler(SamplingParameters(temperature=1.0), N_VOCAB))
    return CostAwareDrafter(source, weighed).draft([1, 2, 3], limits(*bounds, width=8, leaves=64)).tree


@pytest.mark.parametrize("budget", [2, 7, 32])
@pytest.mark.parametrize("depth", [1, 2, 9])
def test_an_adaptive_tree_stays_within_its_limits(budget: int, depth: int) -> None:
    draft = TableDraft(1, n_sequences=8)
    tree = cost_aware(draft, guide({1: 10.0, 32: 10.0}, 0.0, 0.1), budget, depth)
    assert 1 <= len(tree) <= budget
    assert tree.depth <= depth
    assert len(draft.passes) < depth
    assert all(n <= 8 for n in draft.passes)


def test_an_adaptive_tree_is_as_large_as_it_costs_nothing_and_empty_if_it_costs_too_much() -> None:
    free = guide({1: 10.0, 2: 10.0, 4: 10.0, 8: 10.0, 16: 10.0, 32: 10.0}, 0.0, 0.1)
    assert len(cost_aware(TableDraft(2), free, 32, 9)) >= 30
    dear = guide({1: 10.0, 2: 30.0, 32: 400.0}, 5.0, 0.1)
    draft = TableDraft(2)
    assert len(cost_aware(draft, dear, 32, 9)) == 1
    assert draft.passes == [], "not even a second draft pass was worth it"


def test_an_adaptive_tree_stays_on_the_cheap_side_of_a_cliff() -> None:
    cliff = guide({n: 10.0 + (50.0 if n > 8 else 0.0) for n in (1, 2, 4, 8, 9, 16, 32)}, 0.0, 0.1)
    assert 5 <= len(cost_aware(TableDraft(3), cliff, 32, 9)) <= 8


def test_committed_tokens_that_are_decoded_again_count_towards_the_pass() -> None:
    weighed = guide({1: 10.0, 4: 10.0, 8: 10.0, 9: 100.0}, 0.0, 0.1)
    source = ModelCandidates(TableDraft(3), Sampler(SamplingParameters(temperature=1.0), N_VOCAB))
    tree = CostAwareDrafter(source, weighed).draft([1, 2, 3], DraftLimits(32, 9, 8, 64, pending=3)).tree
    assert len(tree) == 5


def test_every_node_knows_the_drafts_own_probability() -> None:
    tree = cost_aware(TableDraft(4), guide({1: 10.0, 32: 10.0}, 0.0, 0.1), 32, 4)
    for node, children in enumerate(tree.children):
        shares = tree.probabilities[children]
        assert (shares > 0).all(), node
        assert shares.sum() <= 1 + 1e-9


def test_a_chain_is_the_drafts_own_text() -> None:
    draft = TableDraft(4)
    sampler = Sampler(SamplingParameters(temperature=0.9, seed=3), N_VOCAB)
    tree = ChainDrafter(ModelCandidates(draft, sampler)).draft([5, 6], limits(100, 4)).tree
    text = [5, 6]
    for _ in range(4):
        text.append(sampler.sample(draft.logits(text[1:]), len(text), ()))
    assert tree.tokens.tolist() == text[1:]
    assert tree.parents.tolist() == [-1, 0, 1, 2, 3]
    assert draft.passes == [1, 1, 1]


def test_a_chain_is_the_first_path_of_a_tree() -> None:
    # Both draft with the target's noise, so the likeliest path of a tree begins as the chain does.
    sampler = Sampler(SamplingParameters(temperature=1.0, seed=2), N_VOCAB)
    chain = ChainDrafter(ModelCandidates(TableDraft(9), sampler)).draft([5], limits(100, 3)).tree
    tree = SpecExecDrafter(ModelCandidates(TableDraft(9), sampler)).draft([5], limits(60, 3)).tree
    assert tree.tokens[1] == chain.tokens[1]


def test_penalties_see_the_drafted_path() -> None:
    class Stuck(TableDraft):
        def logits(self, _path: Sequence[int]) -> np.ndarray:
            row = np.zeros(N_VOCAB, np.float32)
            row[4], row[5] = 2.0, 1.5
            return row

    sampler = Sampler(SamplingParameters(temperature=0, repeat_penalty=2.0), N_VOCAB)
    assert ChainDrafter(ModelCandidates(Stuck(0), sampler)).draft([1], limits(100, 2)).tree.tokens.tolist() == [1, 4, 5]
