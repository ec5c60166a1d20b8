"""Drafters against a draft model that is a table: what is proposed, in what order, within what bounds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from specrun.sampling import Sampler, SamplingParameters
from specrun.speculation.drafters import ChainDrafter, DraftLimits, DraftNode, ModelCandidates, SpecExecDrafter
from specrun.speculation.tree import ROOT, TokenTree

N_VOCAB = 30
GREEDY = SamplingParameters(temperature=0)


class TableDraft:
    """A draft model whose logits are a function of the path, and which notes what it was asked."""

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
        self.passes = []
        return self.logits(self._paths[ROOT])

    def expandable(self, parents: Sequence[int]) -> int:
        used = len(self._parents) - len(set(self._parents))
        fresh: list[int] = []
        for parent in parents:
            used += parent in self._parents or parent in fresh
            if used >= self._n_sequences:
                break
            fresh.append(parent)
        return len(fresh)

    def expand(self, nodes: Sequence[DraftNode]) -> np.ndarray:
        self.passes.append(len(nodes))
        for node in nodes:
            assert node.id not in self._paths, "a node was expanded twice"
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
def test_specexec_keeps_the_most_probable_nodes_of_all(seed: int) -> None:
    draft = TableDraft(seed, spread=3.0)
    tree = SpecExecDrafter(ModelCandidates(draft, Sampler(GREEDY, N_VOCAB), max_children=N_VOCAB)).draft(
        [7], limits(12, 3)
    )
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
    tree = SpecExecDrafter(ModelCandidates(draft, sampler)).draft([1, 2, 3], limits(budget, depth, width=6, leaves=8))
    assert tree.tokens[ROOT] == 3
    assert 1 <= len(tree) <= budget
    assert tree.depth <= depth
    assert tree.n_leaves <= 8
    assert all(n <= 6 for n in draft.passes)
    assert len(draft.passes) < max(depth, 1)
    for children in tree.children:
        assert len({int(tree.tokens[child]) for child in children}) == len(children)


def test_a_chain_is_the_drafts_own_text() -> None:
    draft = TableDraft(4)
    sampler = Sampler(SamplingParameters(temperature=0.9, seed=3), N_VOCAB)
    tree = ChainDrafter(draft, sampler).draft([5, 6], limits(100, 4))
    text = [5, 6]
    for _ in range(4):
        text.append(sampler.sample(draft.logits(text[1:]), len(text), ()))
    assert tree.tokens.tolist() == text[1:]
    assert tree.parents.tolist() == [-1, 0, 1, 2, 3]
    assert draft.passes == [1, 1, 1]


def test_a_chain_is_the_first_path_of_a_tree() -> None:
    # Both draft with the target's noise, so the likeliest path of a tree begins as the chain does.
    sampler = Sampler(SamplingParameters(temperature=1.0, seed=2), N_VOCAB)
    chain = ChainDrafter(TableDraft(9), sampler).draft([5], limits(100, 3))
    tree = SpecExecDrafter(ModelCandidates(TableDraft(9), sampler)).draft([5], limits(60, 3))
    assert tree.tokens[1] == chain.tokens[1]


def test_penalties_see_the_drafted_path() -> None:
    class Stuck(TableDraft):
        def logits(self, _path: Sequence[int]) -> np.ndarray:
            row = np.zeros(N_VOCAB, np.float32)
            row[4], row[5] = 2.0, 1.5
            return row

    sampler = Sampler(SamplingParameters(temperature=0, repeat_penalty=2.0), N_VOCAB)
    assert ChainDrafter(Stuck(0), sampler).draft([1], limits(100, 2)).tokens.tolist() == [1, 4, 5]
