"""Calibrated chances follow what was accepted, forget it when the text changes, and stay chances."""

from __future__ import annotations

import numpy as np
import pytest

from specrun.speculation.planning.calibration import MAX_RANK, Calibration

CHILDREN = np.array([0.5, 0.2, 0.1, 0.05])


def counted(share: float, n: int = 400) -> Calibration:
    """A pair whose draft's favourite is accepted in `share` of the cases, and else the second."""
    calibration = Calibration()
    rng = np.random.default_rng(0)
    for _ in range(n):
        # The draft never says quite the same, so that neighbouring cells are counted as well.
        said = CHILDREN * rng.uniform(0.7, 1.4, len(CHILDREN))
        calibration.count(1, said, 0 if rng.random() < share else 1)
    return calibration.with_run()


def test_without_counts_the_drafts_own_probability_is_the_guess() -> None:
    chances = Calibration().chances(1, np.array([0.9, 0.08, 0.01]))
    assert chances == pytest.approx([0.9, 0.073, 0.01], abs=0.03)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_chances_are_the_shares_that_were_counted(share: float) -> None:
    chances = counted(share).chances(1, CHILDREN)
    assert chances[0] == pytest.approx(share, abs=0.08)
    assert chances[1] == pytest.approx(min(1 - share, chances[0]), abs=0.08)


def test_chances_never_rise_with_the_rank_and_are_chances() -> None:
    rng = np.random.default_rng(1)
    calibration = counted(0.05)
    for depth in (1, 2, 3, 4, 30):
        probabilities = np.sort(rng.dirichlet(np.ones(MAX_RANK)))[::-1]
        chances = calibration.chances(depth, probabilities)
        assert (np.diff(chances) <= 0).all()
        assert (chances >= 0).all()
        assert (chances <= 1).all()


def test_chances_rise_with_the_drafts_own_probability_without_steps() -> None:
    calibration = counted(0.6)
    shares = np.linspace(0.001, 0.999, 200)
    chances = np.array([calibration.chances(1, np.array([share]))[0] for share in shares])
    assert len(np.unique(chances)) > 150, "nodes that differ are told apart"
    assert np.abs(np.diff(chances)).max() < 0.1


def test_the_expected_gain_is_the_mean_over_what_the_draft_may_say() -> None:
    # Half of the time the draft is sure of a first child, which is then accepted, half of the time it has no idea.
    calibration = Calibration()
    for i in range(4000):
        calibration.count(1, np.array([0.99]) if i % 2 else np.array([0.1]), 0 if i % 2 else None)
    calibration = calibration.with_run()
    assert calibration.expected_gain(1, 1.0, 0.0) == pytest.approx(0.5, abs=0.02)
    # A child of the mean chance would not be worth 0.6, but the sure one is.
    assert calibration.expected_gain(1, 1.0, 0.6) == pytest.approx(0.2, abs=0.02)
    assert calibration.expected_gain(1, 0.5, 0.6) == 0.0
    assert Calibration().expected_gain(1, 1.0, 0.0) > 0.2, "of a pair nothing is known of, something is hoped for"


def test_a_collapse_is_seen_within_50_passes_and_forgotten_after_it() -> None:
    calibration = counted(0.8)
    before = calibration.chances(1, CHILDREN)[0]
    for _ in range(50):
        calibration.count(1, CHILDREN, None)
        calibration.fade()
    assert calibration.chances(1, CHILDREN)[0] < 0.35 * before
    for _ in range(300):
        calibration.fade()
    assert calibration.chances(1, CHILDREN)[0] == pytest.approx(before, rel=0.05)


def test_a_calibration_of_the_same_counts_keeps_the_counts_from_texts_and_not_those_from_generating() -> None:
    calibration = counted(0.7)
    before = calibration.chances(2, CHILDREN)
    for _ in range(30):
        calibration.count(2, CHILDREN, None)
        calibration.fade()
    assert calibration.chances(2, CHILDREN)[0] < 0.9 * before[0]
    assert Calibration(calibration.counts).chances(2, CHILDREN) == pytest.approx(before)
    with pytest.raises(ValueError, match="shape"):
        Calibration(np.ones(1))


def test_acceptance_by_rank_is_that_of_all_first_choices_and_of_other_children_below_roots() -> None:
    unknown = Calibration().by_rank
    assert unknown[:3] == [0.7, 0.15, 0.075]
    calibration = Calibration()
    for i in range(1000):
        calibration.count(1, CHILDREN, 0 if i % 10 < 6 else 1 if i % 10 < 9 else None)
        calibration.count(2, CHILDREN[:1], 0)  # deeper nodes have only the children that were worth a place
    by_rank = calibration.by_rank
    assert by_rank[:2] == pytest.approx([0.8, 0.2 * 0.75], abs=0.01)
    assert by_rank[2] < 0.002
    assert sum(by_rank) <= 1
    assert calibration.with_run().by_rank == by_rank


def test_ranks_that_are_counted_together_share_their_acceptance() -> None:
    calibration = Calibration()
    for _ in range(1000):
        calibration.count(1, np.full(16, 1 / 16), 5)
    by_rank = calibration.by_rank
    assert by_rank[4:8] == pytest.approx([(1 - by_rank[0]) / 4] * 4, rel=0.02)
    assert max(by_rank[8:]) < 0.001
