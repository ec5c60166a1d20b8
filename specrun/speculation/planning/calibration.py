"""From the draft's own probability of a child to the chance that the target accepts it.

They are not the same: with shared noise, or greedily, the draft's favourite is the target's choice far more often than
its probability says. The chance is counted, by the child's rank among its siblings, its depth and the draft's
probability, from texts (`specrun tune`) and while generating.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MAX_RANK = 16
_RANK_STARTS = (0, 1, 2, 3, 4, 8)
_DEPTH_STARTS = (1, 2, 4)
_PROBABILITY_EDGES = (0.005, 0.02, 0.05, 0.1, 0.18, 0.28, 0.4, 0.52, 0.64, 0.76, 0.86, 0.94, 0.985)
_BIN_MEANS = np.array([0.002, 0.01, 0.033, 0.073, 0.14, 0.23, 0.34, 0.46, 0.58, 0.7, 0.81, 0.9, 0.965, 0.995])
_SHAPE = (len(_DEPTH_STARTS), len(_RANK_STARTS), len(_BIN_MEANS))
_RANK_BUCKET = np.searchsorted(_RANK_STARTS, np.arange(MAX_RANK), side="right") - 1

# Of a pair nothing is known of: children of a node in each cell. A child of rank r has at most the share 1 / (r + 1).
_PRIOR_CHILDREN = np.array(
    [
        np.bincount(_RANK_BUCKET)[bucket] * possible / possible.sum()
        for bucket, start in enumerate(_RANK_STARTS)
        for possible in [1 / (start + 1) >= _BIN_MEANS]
    ]
)
_PRIOR_NODES = 1.0

# Observations that a coarser estimate weighs: a cell follows its own count once it has seen a few more than these.
_WEIGHT = 6.0
_PROFILE_WEIGHT = 12.0
_DECAY = 0.97  # of what was seen while generating, per pass: about the last 30 passes count


class Calibration:
    """Counts of children seen and accepted, and the chances that follow from them.

    What was counted from texts stays; what is counted while generating fades, so that a new kind of text shifts the
    chances within a few dozen passes, and chances return to those of the texts when it ends.
    """

    def __init__(self, seen: Floats | None = None, accepted: Floats | None = None) -> None:
        self._seen = np.zeros(_SHAPE) if seen is None else seen
        self._accepted = np.zeros(_SHAPE) if accepted is None else accepted
        self._recent_seen = np.zeros(_SHAPE)
        self._recent_accepted = np.zeros(_SHAPE)
        self.settle()

    def chances(self, depth: int, probabilities: Floats) -> Floats:
        """float64[k]: chance that each child is accepted if its parent is. They never rise with the rank.

        depth: of the children, 1 below the root. probabilities: float64[k], the draft's own, likeliest first.
        """
        ranks = _RANK_BUCKET[: len(probabilities)]
        # Between the middles of two cells drawn straight, or nodes of one cell would all be equally good.
        above = np.clip(np.searchsorted(_BIN_MEANS, probabilities), 1, len(_BIN_MEANS) - 1)
        low, high = _BIN_MEANS[above - 1], _BIN_MEANS[above]
        weight = np.clip((probabilities - low) / (high - low), 0.0, 1.0)
        of_ranks = self._chances[_depth_bucket(depth)]
        chances = (1 - weight) * of_ranks[ranks, above - 1] + weight * of_ranks[ranks, above]
        return np.minimum.accumulate(chances)

    def expected_gain(self, depth: int, reached: float, floor: float) -> float:
        """What the children of a node are expected to add to the accepted length, each less `floor`, where it is more:
        before the draft has been asked for them, so over all that it might say.

        depth: of the children. reached: chance that the node itself is accepted.
        """
        bucket = _depth_bucket(depth)
        return float((self._expected[bucket] * np.maximum(reached * self._chances[bucket] - floor, 0.0)).sum())

    def count(self, depth: int, probabilities: Floats, matched: int | None, recent: bool = True) -> None:
        """Note what became of the children of a node that was accepted.

        matched: rank of the child that was accepted, or None. recent: while generating, so that it fades.
        """
        probabilities = probabilities[:MAX_RANK]
        cells = np.searchsorted(_PROBABILITY_EDGES, probabilities, side="right")
        bucket = _depth_bucket(depth)
        seen, accepted = (self._recent_seen, self._recent_accepted) if recent else (self._seen, self._accepted)
        np.add.at(seen[bucket], (_RANK_BUCKET[: len(cells)], cells), 1.0)
        if matched is not None and matched < len(cells):
            accepted[bucket, _RANK_BUCKET[matched], cells[matched]] += 1.0

    def settle(self) -> None:
        """Let what was counted since decide: call it once after the texts, and after every pass."""
        self._base = _estimate(self._seen, self._accepted)
        self._chances = _estimate(self._recent_seen, self._recent_accepted, self._base)
        # float64 of the shape of `seen`: children of a node that fall into each cell.
        n_nodes = self._seen[:, 0].sum(axis=1) + _PRIOR_NODES
        self._expected = (self._seen + _PRIOR_NODES * _PRIOR_CHILDREN) / n_nodes[:, None, None]

    def fade(self) -> None:
        """One pass has gone by."""
        self._recent_seen *= _DECAY
        self._recent_accepted *= _DECAY
        self._chances = _estimate(self._recent_seen, self._recent_accepted, self._base)

    def as_json(self) -> dict[str, Any]:
        """What was counted from texts."""
        return {"seen": self._seen.tolist(), "accepted": self._accepted.tolist()}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Calibration:
        """Raises KeyError or ValueError for a value that is not that of `as_json`."""
        seen, accepted = np.array(value["seen"], np.float64), np.array(value["accepted"], np.float64)
        if seen.shape != _SHAPE or accepted.shape != _SHAPE:
            raise ValueError("a calibration of another shape")
        return cls(seen, accepted)


def _depth_bucket(depth: int) -> int:
    return int(np.searchsorted(_DEPTH_STARTS, depth, side="right")) - 1


def _estimate(seen: Floats, accepted: Floats, prior: Floats | None = None) -> Floats:
    """Shares, drawn towards coarser ones where little was seen: those of all depths together, and these towards
    `prior` (or the draft's own probability).
    """
    if prior is not None:
        # While generating: how much better or worse than the texts, by rank, then by cell.
        expected = (prior * seen).sum(axis=(0, 2))
        found = accepted.sum(axis=(0, 2))
        shift = (found + _WEIGHT) / (expected + _WEIGHT)
        prior = np.clip(prior * shift[None, :, None], 0.0, 1.0)
        return np.asarray((accepted + _PROFILE_WEIGHT * prior) / (seen + _PROFILE_WEIGHT))
    own = np.broadcast_to(_BIN_MEANS, _SHAPE[1:])
    pooled = (accepted.sum(axis=0) + _WEIGHT * own) / (seen.sum(axis=0) + _WEIGHT)
    return np.asarray((accepted + _WEIGHT * pooled) / (seen + _WEIGHT))
