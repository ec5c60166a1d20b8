"""Calibrated chances follow what was accepted, forget it when the text changes, and stay chances."""

from __future__ import annotations

import numpy as np
import pytest

from specrun.speculation.calibration import MAX_RANK, Calibration

CHILDREN = np.array([0.5, 0.2, 0.1, 0.05])


def counted(share: float, n: int = 400, recent: bool = False) -> Calibration:
    """A pair whose draft's favourite is accepted in `share` of the cases, and else the second."""
    calibration = Calibration()
    rng = np.random.default_rng(0)
    for _ in range(n):
        calibration.count(1, CHILDREN, 0 if rng.random() < share else 1, recent)
    calibration.settle()
    return calibration


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
        means = calibration.mean_chances(depth)
        assert means.shape == (MAX_RANK,)
        assert (np.diff(means) <= 0).all()


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


def test_json_keeps_what_texts_gave_and_not_what_generating_gave() -> None:
    calibration = counted(0.7)
    before = calibration.chances(2, CHILDREN)
    for _ in range(30):
        calibration.count(2, CHILDREN, None)
        calibration.fade()
    assert Calibration.from_json(calibration.as_json()).chances(2, CHILDREN) == pytest.approx(before)
    with pytest.raises(ValueError, match="shape"):
        Calibration.from_json({"seen": [1.0], "accepted": [1.0]})
