"""Trees of guesses, alone and merged with those of a draft model."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from specrun.sampling import Sampler, SamplingParameters
from specrun.speculation.drafters.cost_aware import CostAwareDrafter
from specrun.speculation.drafters.guessed import GuessedDrafter
from specrun.speculation.growth import ModelCandidates
from specrun.speculation.planning.guide import Guide
from specrun.speculation.sources.source_set import SourceSet
from specrun.speculation.tree import ROOT, TokenTree
from tests.speculation.drafters.test_drafters import N_VOCAB, TableDraft, guide, limits

# Long enough for matches that are as good as certain.
VERSE = [3, 7, 1, 9, 4, 4, 8, 2, 11, 6, 5, 12, 13, 14, 15, 16, 17, 18, 19, 20]
COPYING = [*VERSE, 21, *VERSE[:12]]
NEW = [24]


class Reader(TableDraft):
    """A draft that has read the verse, and expects it to go on, more or less."""

    def __init__(self, height: float) -> None:
        super().__init__(2)
        self._height = height

    def logits(self, path: Sequence[int]) -> np.ndarray:
        row = super().logits(path)
        for token, following in itertools.pairwise(VERSE):
            if token == path[-1]:
                row[following] += self._height
        return row


def follow(text: list[int]) -> SourceSet:
    sources = SourceSet()
    sources.follow(text, ["suffix-automaton"])
    return sources


def test_what_was_copied_before_is_drafted_on() -> None:
    tree = GuessedDrafter(follow(COPYING)).draft(COPYING, limits(16, 8)).tree
    assert tree.tokens[: tree.depth + 1].tolist() == [VERSE[11], *VERSE[12:20]][: tree.depth + 1]
    assert tree.depth == 8
    assert np.isnan(tree.probabilities[1:]).all(), "no draft model was asked"


def test_where_nothing_repeats_nothing_is_drafted() -> None:
    assert len(GuessedDrafter(follow(NEW)).draft(NEW, limits(16, 8)).tree) == 1


@pytest.mark.parametrize("budget", [1, 2, 5, 40])
@pytest.mark.parametrize("depth", [1, 3, 9])
def test_a_tree_of_guesses_stays_within_its_limits(budget: int, depth: int) -> None:
    text = np.random.default_rng(0).integers(0, 3, 200).tolist()
    tree = GuessedDrafter(follow(text)).draft(text, limits(budget, depth, leaves=9)).tree
    assert len(tree) <= budget
    assert tree.depth <= depth
    assert tree.n_leaves <= 9


def test_pass_times_say_how_many_guesses_are_worth_theirs() -> None:
    cheap = guide({1: 10.0, 40: 10.0}, 0.0, 0.01)
    dear = guide({1: 10.0, 2: 30.0, 40: 500.0}, 0.0, 0.1)
    assert GuessedDrafter(follow(COPYING), cheap).draft(COPYING, limits(40, 9)).tree.depth == 9, "as deep as it may be"
    assert len(GuessedDrafter(follow(COPYING), dear).draft(COPYING, limits(40, 9)).tree) == 1


def merged(text: list[int], weighed: Guide, draft: TableDraft) -> TokenTree:
    source = ModelCandidates(draft, Sampler(SamplingParameters(temperature=1.0), N_VOCAB))
    return CostAwareDrafter(source, weighed, follow(text)).draft(text, limits(24, 9, width=8, leaves=64)).tree


def test_a_merged_tree_holds_both_and_no_token_twice() -> None:
    draft = Reader(8.0)
    tree = merged(COPYING, guide({1: 10.0, 24: 10.0}, 0.0, 0.1), draft)
    for children in tree.children:
        assert len({int(tree.tokens[child]) for child in children}) == len(children)
    assert tree.tokens[1:5].tolist() == VERSE[12:16], "the copy is the likeliest path"
    assert np.isfinite(tree.probabilities[1:]).any(), "and the draft was asked as well"
    assert draft.passes


def test_a_copy_that_the_draft_confirms_is_followed_further_than_one_that_it_contradicts() -> None:
    weighed = guide({1: 10.0, 24: 10.0}, 0.05, 0.1)

    def copied(draft: TableDraft) -> int:
        """Tokens of the verse on the likeliest path."""
        path = merged(COPYING, weighed, draft).tokens[1:].tolist()
        return next((i for i, (a, b) in enumerate(zip(path, VERSE[12:], strict=False)) if a != b), len(path))

    assert copied(Reader(8.0)) > copied(Reader(-30.0))


def test_one_draft_pass_looks_at_several_levels_of_a_guess() -> None:
    draft = Reader(8.0)
    tree = merged(COPYING, guide({1: 10.0, 24: 10.0}, 0.05, 0.1), draft)
    known = np.isfinite(tree.probabilities)
    levels = {int(depth) for depth in tree.depths[known]}
    assert len(levels) > len(draft.passes) + 1, "the copied path was drafted upon in fewer passes than it has levels"


def test_the_draft_is_not_asked_where_the_copy_is_certain_and_drafting_slow() -> None:
    draft = TableDraft(2)
    tree = merged(COPYING, guide({1: 10.0, 24: 10.0}, 9.0, 0.1), draft)
    assert draft.passes == []
    assert tree.depth >= 4
    # Without a copy the same draft pass is worth its time.
    tree = merged(NEW, guide({1: 10.0, 24: 10.0}, 2.0, 0.1), draft)
    assert len(tree) > 1


def test_without_sources_a_merged_tree_is_the_adaptive_one() -> None:
    weighed = guide({1: 10.0, 24: 10.0}, 0.1, 0.1)
    source = ModelCandidates(TableDraft(4), Sampler(SamplingParameters(temperature=1.0), N_VOCAB))
    alone = CostAwareDrafter(source, weighed).draft(NEW, limits(24, 9, width=8, leaves=64)).tree
    assert merged(NEW, weighed, TableDraft(4)).tokens.tolist() == alone.tokens.tolist()
    assert alone.tokens[ROOT] == NEW[-1]
