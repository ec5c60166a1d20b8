"""The papers' drafters, on a draft model that is a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from specrun.sampling import Sampler, SamplingParameters
from specrun.speculation.drafter import Drafter
from specrun.speculation.drafters.sequoia import StaticDrafter
from specrun.speculation.drafters.specexec import SpecExecDrafter
from specrun.speculation.growth import ModelCandidates
from specrun.speculation.papers.growers import (
    STOPS,
    DrawnDraft,
    LevelDrafter,
    SampledDrafter,
    cape_count,
    chain,
    dynamic_depth,
    opt_tree,
)
from specrun.speculation.registry import METHODS
from specrun.speculation.tree import ROOT, TreeShape
from specrun.verifying.findings import chi_square_p_value
from tests.speculation.drafters.test_drafters import GREEDY, N_VOCAB, TableDraft, guide, limits, paths_of

HOT = SamplingParameters(temperature=1.0, top_k=0, top_p=1, min_p=0)


class Sure(TableDraft):
    """A draft that has no doubt, or knows nothing at all."""

    def __init__(self, height: float) -> None:
        super().__init__(0)
        self._height = height

    def logits(self, path: Sequence[int]) -> np.ndarray:
        row = np.zeros(N_VOCAB, np.float32)
        row[(path[-1] + 1) % N_VOCAB] = self._height
        return row


def source(draft: TableDraft, sampling: SamplingParameters = GREEDY) -> ModelCandidates:
    return ModelCandidates(draft, Sampler(sampling, N_VOCAB))


GROWERS = {
    "opt-tree": lambda s: LevelDrafter(s, opt_tree()),
    "ddd": lambda s: LevelDrafter(s, dynamic_depth),
    "cape": lambda s: chain(s, count=cape_count),
    "specdec++": lambda s: chain(s, STOPS["specdec++"]),
    "disco": lambda s: chain(s, STOPS["disco"]),
    "adaedl": lambda s: chain(s, STOPS["adaedl"]),
    "static": lambda s: StaticDrafter(s, TreeShape.branching((4, 3, 2, 1))),
}


@pytest.mark.parametrize("name", GROWERS)
@pytest.mark.parametrize("budget", [1, 2, 5, 64])
@pytest.mark.parametrize("depth", [1, 3, 9])
@pytest.mark.parametrize("sampling", [GREEDY, HOT], ids=["greedy", "T=1"])
def test_a_tree_stays_within_its_limits(name: str, budget: int, depth: int, sampling: SamplingParameters) -> None:
    draft = TableDraft(1, n_sequences=8)
    tree = GROWERS[name](source(draft, sampling)).draft([1, 2, 3], limits(budget, depth, width=6, leaves=20)).tree
    assert tree.tokens[ROOT] == 3
    assert 1 <= len(tree) <= budget
    assert tree.depth <= depth
    assert len(draft.passes) < max(depth, 1)
    for children in tree.children:
        assert len({int(tree.tokens[child]) for child in children}) == len(children)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["opt-tree", "ddd", "specdec++", "disco", "adaedl"])
def test_drafting_goes_on_while_the_draft_is_confident(name: str) -> None:
    grower: Drafter = GROWERS[name](source(Sure(20.0)))
    assert grower.draft([3], limits(9, 8)).tree.depth == 8
    grower = GROWERS[name](source(Sure(0.0)))
    assert grower.draft([3], limits(9, 8)).tree.depth <= 2


def test_opt_tree_is_the_tree_of_the_likeliest_nodes_until_depth_costs_more() -> None:
    free = guide({1: 10.0, 32: 10.0}, 0.0, 0.1)
    tree = LevelDrafter(source(TableDraft(3, spread=3.0)), opt_tree(free)).draft([7], limits(24, 6)).tree
    best_first = SpecExecDrafter(source(TableDraft(3, spread=3.0))).draft([7], limits(24, 6)).tree
    assert paths_of(tree) == paths_of(best_first)
    dear = guide({1: 10.0, 32: 10.0}, 9.9, 0.1)
    assert (
        LevelDrafter(source(TableDraft(3, spread=3.0)), opt_tree(dear)).draft([7], limits(24, 6)).tree.depth
        < tree.depth
    )


def own_probabilities(draft: TableDraft, path: Sequence[int], temperature: float) -> np.ndarray:
    scaled = draft.logits(path).astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    return weights / weights.sum()


def ended(name: str, own: list[np.ndarray], drafted: list[float]) -> bool:
    """Whether a chain whose tokens have the probabilities `drafted` in the distributions `own` ends with the last."""
    entropy = -float((own[-1] * np.log(own[-1])).sum())
    rules = {
        "specdec++": 1 - np.prod(drafted) > 0.7,
        "disco": drafted[-1] < 0.4,
        "adaedl": 1 - np.sqrt(0.2 * entropy) < 0.3,
    }
    return bool(rules[name])


@pytest.mark.parametrize("name", ["specdec++", "disco", "adaedl"])
@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_chains_end_by_the_drafts_own_probabilities_whatever_the_noise(name: str, temperature: float) -> None:
    lengths = set()
    for seed in range(25):
        draft = TableDraft(seed, spread=2 * temperature)
        sampling = SamplingParameters(temperature=temperature, top_k=0, top_p=1, min_p=0, seed=seed)
        tokens = GROWERS[name](source(draft, sampling)).draft([3], limits(13, 12)).tree.tokens.tolist()
        own = [own_probabilities(draft, tokens[:n], temperature) for n in range(1, len(tokens))]
        drafted = [float(p[token]) for p, token in zip(own, tokens[1:], strict=True)]
        ends = [n for n in range(2, len(tokens)) if ended(name, own[:n], drafted[:n])]
        assert ends == [len(tokens) - 1] or (not ends and len(tokens) == 13)
        lengths.add(len(tokens))
    assert len(lengths) > 1


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_cape_counts_siblings_by_the_drafts_own_probability(temperature: float) -> None:
    seen = set()
    for seed in range(12):
        draft = TableDraft(seed, spread=4.0)
        sampling = SamplingParameters(temperature=temperature, top_k=30, top_p=1, min_p=0, seed=seed)
        tree = chain(source(draft, sampling), count=cape_count).draft([3], limits(100, 4)).tree
        for node, children in enumerate(tree.children):
            if children:
                own = own_probabilities(draft, tree.tokens[tree.path_to(node)].tolist(), temperature)
                p = own[tree.tokens[children[0]]]
                assert len(children) == (7 if p <= 0.3 else 5 if p <= 0.6 else 3 if p <= 0.8 else 1)
                seen.add(len(children))
    assert seen == {1, 3, 5, 7}


class Tossed(TableDraft):
    """A draft to which two tokens are equally likely, and hardly any other."""

    def logits(self, path: Sequence[int]) -> np.ndarray:
        row = np.full(N_VOCAB, -30.0, np.float32)
        row[[(path[-1] + 1) % N_VOCAB, (path[-1] + 2) % N_VOCAB]] = 0.0
        return row


@pytest.mark.parametrize("seed", range(8))
def test_trees_stop_at_the_level_where_the_drafts_own_probabilities_say_so(seed: int) -> None:
    sampling = SamplingParameters(temperature=1.0, top_k=30, top_p=1, min_p=0, seed=seed)
    # Ten of the paths hold 10/16, 10/32 and 10/64 of the probability on the levels 4 to 6.
    draft = Tossed(0)
    assert LevelDrafter(source(draft, sampling), dynamic_depth).draft([3], limits(1000, 12, width=10)).tree.depth == 6
    assert len(draft.passes) == 5
    # All paths down to level 2 are expected to bring 3 tokens, and an eighth node 1/8 of a token.
    LevelDrafter(source(draft, sampling), opt_tree()).draft([3], limits(8, 12))
    assert len(draft.passes) == 2


@pytest.mark.parametrize(("height", "n_siblings"), [(20.0, 1), (3.5, 3), (2.3, 5), (0.5, 7)])
def test_cape_has_the_more_siblings_the_less_sure_the_draft_is(height: float, n_siblings: int) -> None:
    tree = chain(source(Sure(height)), count=cape_count).draft([3], limits(100, 3)).tree
    assert [len(children) for children in tree.children if children] == [n_siblings] * 3
    assert tree.depth == 3


def test_a_static_tree_is_its_shape_filled_by_rank() -> None:
    shape = TreeShape.branching((3, 2, 1))
    draft = TableDraft(2)
    tree = StaticDrafter(source(draft), shape).draft([7], limits(100, 9)).tree
    assert tuple(tree.parents.tolist()) == shape.parents
    for node, children in enumerate(tree.children):
        row = draft.logits(tree.tokens[tree.path_to(node)].tolist())
        assert tree.tokens[children].tolist() == np.argsort(-row)[: len(children)].tolist()
    assert draft.passes == [3, 6]


def drawn(seed: int, position: int, draw: str, shape: TreeShape, n_vocab: int = N_VOCAB) -> DrawnDraft:
    sampler = Sampler(SamplingParameters(temperature=1.0, top_k=4, top_p=1, min_p=0, seed=seed), n_vocab)
    drafter = SampledDrafter(ModelCandidates(TableDraft(5), sampler), shape, draw)  # type: ignore[arg-type]
    return drafter.draft([9] * position, limits(100, 9))


@pytest.mark.slow
@pytest.mark.parametrize("draw", ["independent", "without replacement"])
def test_draws_are_the_drafts_distribution(draw: str) -> None:
    shape = TreeShape.branching((2, 1))
    trees = [drawn(seed, 3, draw, shape) for seed in range(4000)]
    proposals = [tree.proposals[ROOT] for tree in trees]
    first = proposals[0]
    assert first is not None
    q = dict(zip(first.tokens.tolist(), first.probabilities.tolist(), strict=True))
    pairs = Counter(proposal.draws for proposal in proposals if proposal)
    expected = {
        (a, b): q[a] * (q[b] if draw == "independent" else q[b] / (1 - q[a]))
        for a in q
        for b in q
        if draw == "independent" or a != b
    }
    observed = np.array([pairs[pair] for pair in expected])
    assert observed.sum() == len(trees)
    assert chi_square_p_value(observed, len(trees) * np.array(list(expected.values()))) > 1e-4


def test_draws_are_fresh_at_every_position_and_the_same_for_a_seed() -> None:
    shape = TreeShape.branching((3, 2))
    trees = [drawn(seed, position, "without replacement", shape) for seed in range(6) for position in (3, 4, 5)]
    assert len({tuple(one.tree.tokens.tolist()) for one in trees}) > 12
    again = drawn(2, 4, "without replacement", shape)
    assert again.tree.tokens.tolist() == drawn(2, 4, "without replacement", shape).tree.tokens.tolist()


def test_a_token_drawn_twice_is_one_child() -> None:
    draft = drawn(1, 3, "independent", TreeShape.branching((40, 1)))
    tree, proposal = draft.tree, draft.proposals[ROOT]
    assert proposal
    assert len(proposal.draws) == 40
    assert len(tree.children[ROOT]) == len(set(proposal.draws)) <= 4
    draws = {int(tree.tokens[child]): draft.proposals[child] for child in tree.children[ROOT]}
    assert {token: len(after.draws) for token, after in draws.items() if after} == Counter(proposal.draws)


def test_when_the_draft_has_no_more_tokens_draws_end_or_go_on_with_the_others() -> None:
    shape = TreeShape.branching((7,))
    ends = drawn(1, 3, "without replacement", shape)
    goes_on = drawn(1, 3, "without replacement, then uniform", shape)
    assert len(ends.tree.children[ROOT]) == 4
    assert len(goes_on.tree.children[ROOT]) == 7
    proposal = goes_on.proposals[ROOT]
    assert proposal
    assert set(proposal.draws[4:]).isdisjoint(proposal.tokens.tolist())


def test_a_drawn_tree_keeps_all_its_nodes_because_the_rule_needs_every_draw() -> None:
    with pytest.raises(ValueError, match="cannot lose nodes"):
        drawn(1, 3, "independent", TreeShape.branching((4, 1))).limited(2, 8)


def test_tokens_that_only_the_target_knows_are_not_drafted_further() -> None:
    tree = drawn(1, 3, "without replacement, then uniform", TreeShape.branching((40, 1)), n_vocab=N_VOCAB + 20).tree
    unknown = [child for child in tree.children[ROOT] if tree.tokens[child] >= N_VOCAB]
    assert unknown
    assert not any(tree.children[child] for child in unknown)


def test_paths_that_begin_alike_share_nodes() -> None:
    sampler = Sampler(SamplingParameters(temperature=1.0, top_k=3, top_p=1, min_p=0), N_VOCAB)
    shape = TreeShape.branching((12, 1, 1, 1))
    draft = SampledDrafter(ModelCandidates(TableDraft(5), sampler), shape, "independent").draft([9], limits(49, 4))
    tree = draft.tree
    assert len(draft.proposals) == len(tree)
    through = {ROOT: 12}
    for node, proposal in enumerate(draft.proposals):
        if tree.depths[node] == 4:
            assert proposal is None
            continue
        assert proposal
        assert len(proposal.draws) == through[node]
        for child in tree.children[node]:
            through[child] = proposal.draws.count(int(tree.tokens[child]))
    assert len(tree) < 49


def test_a_plan_of_ddd_has_the_papers_beam() -> None:
    assert METHODS["ddd"].plan().width == METHODS["ddd"].plan(60, 6).width == 10


def test_the_token_at_which_a_chain_stops_is_kept() -> None:
    """Its draft pass has been made, so it costs no more than its place in the target's pass."""
    draft = Sure(0.0)
    tree = chain(source(draft), STOPS["disco"]).draft([1], limits(16, 8)).tree
    assert (len(draft.passes), tree.depth) == (1, 2)
