"""Trees are the same, to the last bit, as where every node is ranked, offered and ordered alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from specrun.catalog import embedded
from specrun.decoding.engine import Engine
from specrun.sampling import Sampler, SamplingParameters
from specrun.speculation.drafter import DraftLimits, DraftModel, DraftNode
from specrun.speculation.drafters.specexec import SPECEXEC, SpecExecDrafter, sharpness_at
from specrun.speculation.growth import ModelCandidates
from specrun.speculation.planning.calibration import MAX_RANK
from tests.engines import code_prompts, engine


@pytest.fixture(scope="module")
def pair() -> Iterator[Engine]:
    with engine(embedded.TARGET, embedded.DRAFT, SPECEXEC.plan(256, 16)) as made:
        yield made


Nodes = list[tuple[int, int, float, float]]
"""(token, parent, score, probability) of each node, in depth-first order, the likeliest child first."""


def node_by_node(model: DraftModel, sampler: Sampler, text: Sequence[int], limits: DraftLimits) -> Nodes:
    """Algorithm 1 of SpecExec."""
    nodes: Nodes = [(text[-1], -1, 0.0, 1.0)]
    depths, level, waiting = [0], [0], list[int]()
    for depth in range(limits.depth):
        asked = [DraftNode(node, nodes[node][1], nodes[node][0]) for node in level]
        rows = model.expand(asked) if depth else model.start(text)[None]
        kept = sorted((node[2] for node in nodes), reverse=True)
        worst = kept[limits.budget - 1] if len(kept) >= limits.budget else -math.inf
        for node, row in zip(level, rows, strict=True):
            found = sampler.candidates(row[None], [len(text) + depths[node]], [()], MAX_RANK)[0]
            scores = nodes[node][2] + found.log_shares(sharpness_at(sampler.parameters.temperature))
            for token, score, share in zip(found.tokens.tolist(), scores.tolist(), found.shares.tolist(), strict=True):
                if score > worst:
                    waiting.append(len(nodes))
                    nodes.append((token, node, score, share))
                    depths.append(depths[node] + 1)
        kept = sorted((node[2] for node in nodes), reverse=True)
        worst = kept[limits.budget - 1] if len(kept) >= limits.budget else -math.inf
        waiting = [node for node in waiting if nodes[node][2] > worst and depths[node] < limits.depth]
        waiting.sort(key=lambda node: (-nodes[node][2], node))
        left_out, level = set(waiting), []
        for place in model.expandable([nodes[node][1] for node in waiting], limits.width):
            if nodes[waiting[place]][1] not in left_out:
                left_out.remove(waiting[place])
                level.append(waiting[place])
        waiting = [node for node in waiting if node in left_out]
        if not level:
            break
    return best_of(nodes, limits.budget)


def best_of(nodes: Nodes, budget: int) -> Nodes:
    """The likeliest `budget` nodes."""
    order: list[int] = []

    def visit(node: int) -> None:
        order.append(node)
        below = [child for child, (_, parent, _, _) in enumerate(nodes) if parent == node]
        for child in sorted(below, key=lambda one: -nodes[one][2]):
            visit(child)

    visit(0)
    best = set(sorted(order, key=lambda node: -nodes[node][2])[:budget])
    kept = [node for node in order if node in best]
    place = {node: i for i, node in enumerate(kept)} | {-1: -1}
    return [(nodes[node][0], place[nodes[node][1]], *nodes[node][2:]) for node in kept]


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("budget", [16, 120])
def test_a_tree_has_the_bits_of_one_grown_node_by_node(pair: Engine, temperature: float, budget: int) -> None:
    assert pair.draft
    limits = DraftLimits(budget, 6, -(-budget // 6), 256)
    for i, text in enumerate(code_prompts(pair, 3, 40)):
        sampler = Sampler(SamplingParameters(temperature=temperature, seed=i), pair.target.n_vocab)
        pair.draft.reset()
        candidates = ModelCandidates(pair.draft, sampler)
        tree = SpecExecDrafter(candidates, sharpness_at(temperature)).draft(text, limits).tree
        pair.draft.reset()
        expected = node_by_node(pair.draft, sampler, text, limits)
        assert tree.n_leaves < limits.leaves
        found = (tree.tokens.tolist(), tree.parents.tolist(), tree.scores.tolist(), tree.probabilities.tolist())
        assert list(zip(*found, strict=True)) == expected
        assert len(tree) == budget or (np.array(tree.depths) == limits.depth).any()
