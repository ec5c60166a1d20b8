"""Calibration: the chance that the target accepts a child, given the draft's probability of it.

The two differ: with shared noise, or greedily, the target takes the draft's best candidate far more often than the
draft's probability says. So acceptance is counted by the child's rank among its siblings, its depth and the draft's
probability, both from texts (`specrun tune`) and while generating.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MAX_RANK = 16  # ranks that are counted, from 0
_RANK_STARTS = (0, 1, 2, 3, 4, 8)  # first rank of each bucket
_DEPTH_STARTS = (1, 2, 4)  # first depth of each bucket
# Edges of the bins of the draft's probability, and about the mean of each bin.
_PROBABILITY_EDGES = (0.005, 0.02, 0.05, 0.1, 0.18, 0.28, 0.4, 0.52, 0.64, 0.76, 0.86, 0.94, 0.985)
_BIN_MEANS = np.array([0.002, 0.01, 0.033, 0.073, 0.14, 0.23, 0.34, 0.46, 0.58, 0.7, 0.81, 0.9, 0.965, 0.995])
_SHAPE = (2, len(_DEPTH_STARTS), len(_RANK_STARTS), len(_BIN_MEANS))  # of counts: of children seen, and accepted
_RANK_BUCKET = np.searchsorted(_RANK_STARTS, np.arange(MAX_RANK), side="right") - 1

# float64[ranks, bins]: expected children of a node in each cell before any was counted: uniform over the bins that are
# possible, as a child of rank r has at most the probability 1 / (r + 1).
_PRIOR_CHILDREN = np.array(
    [
        np.bincount(_RANK_BUCKET)[bucket] * possible / possible.sum()
        for bucket, start in enumerate(_RANK_STARTS)
        for possible in [1 / (start + 1) >= _BIN_MEANS]
    ]
)
_PRIOR_NODES = 1.0  # nodes that the prior counts as
_USUAL, _USUAL_NODES = 0.7, 10.0  # chance of a draft's first choice before any was seen, and nodes that it counts as

# Number of observations that a coarser estimate counts as when a cell has few of its own.
_WEIGHT = 6.0  # from texts
_PROFILE_WEIGHT = 12.0  # while generating, for the estimate from texts
_UNTAUGHT_WEIGHT = 4.0  # while generating, for an estimate that rests on no texts
_TAUGHT = 100.0  # counted nodes of texts by which the weight is halfway between the two
_MOST_KEPT = 4000.0  # counted nodes that are kept for later runs; with more, old ones count less
_DECAY = 0.97  # factor on the counts of generating after each pass, so that about the last 30 passes count


class Calibration:
    """Counts of children seen and accepted, and the chances that follow from them.

    Counts from texts stay. Counts from generating fade, so a new kind of text shifts the chances within a few dozen
    passes, and they return to those of the texts when it ends.

    counts: float64[2, depth buckets, rank buckets, bins], children seen and children accepted in texts.
    """

    def __init__(self, counts: Floats | None = None) -> None:
        """counts: None for zeros. Raises ValueError for another shape."""
        self.counts = np.zeros(_SHAPE) if counts is None else counts
        if self.counts.shape != _SHAPE:
            raise ValueError(f"the counts of a calibration have the shape {_SHAPE}")
        self._recent, self._run = np.zeros(_SHAPE), np.zeros(_SHAPE)
        seen, accepted = self.counts
        # float64 of the shape of `seen`: the share of accepted children in each cell. Where few were seen it is shrunk
        # towards the share over all depths, itself shrunk towards the draft's probability.
        all_depths = (accepted.sum(axis=0) + _WEIGHT * _BIN_MEANS) / (seen.sum(axis=0) + _WEIGHT)
        self._base = (accepted + _WEIGHT * all_depths) / (seen + _WEIGHT)
        n_nodes = seen[:, 0].sum(axis=1)
        n_texts = float(n_nodes.sum())
        self._weight = _UNTAUGHT_WEIGHT + (_PROFILE_WEIGHT - _UNTAUGHT_WEIGHT) * n_texts / (n_texts + _TAUGHT)
        # The same shape: expected children of a node in each cell.
        self._expected = (seen + _PRIOR_NODES * _PRIOR_CHILDREN) / (n_nodes + _PRIOR_NODES)[:, None, None]
        self.fade(0)

    def chances(self, depth: int, probabilities: Floats) -> Floats:
        """float64[k]: the chance that each child is accepted given that its parent is. It never rises with the rank.

        depth: of the children, 1 below the root. probabilities: float64[k], the draft's, likeliest child first.
        """
        ranks = _RANK_BUCKET[: len(probabilities)]
        # Interpolate between the means of two bins, or all nodes of a cell would have the same chance.
        above = np.clip(np.searchsorted(_BIN_MEANS, probabilities), 1, len(_BIN_MEANS) - 1)
        low, high = _BIN_MEANS[above - 1], _BIN_MEANS[above]
        weight = np.clip((probabilities - low) / (high - low), 0.0, 1.0)
        of_ranks = self._chances[_depth_bucket(depth)]
        chances = (1 - weight) * of_ranks[ranks, above - 1] + weight * of_ranks[ranks, above]
        return np.minimum.accumulate(chances)

    def expected_gain(self, depth: int, reached: float, floor: float) -> float:
        """Expected sum of max(chance - floor, 0) over the children of a node, in accepted tokens.

        The draft has not computed the children yet, so the mean is over all probabilities that it may give. depth: of
        the children. reached: chance that the node itself is accepted.
        """
        bucket = _depth_bucket(depth)
        return float((self._expected[bucket] * np.maximum(reached * self._chances[bucket] - floor, 0.0)).sum())

    def count(self, depth: int, probabilities: Floats, matched: int | None) -> None:
        """Count the children of an accepted node. probabilities: as in `chances`. matched: the accepted rank."""
        probabilities = probabilities[:MAX_RANK]
        cells = np.searchsorted(_PROBABILITY_EDGES, probabilities, side="right")
        bucket = _depth_bucket(depth)
        for seen, accepted in (self._recent, self._run):
            np.add.at(seen[bucket], (_RANK_BUCKET[: len(cells)], cells), 1.0)
            if matched is not None and matched < len(cells):
                accepted[bucket, _RANK_BUCKET[matched], cells[matched]] += 1.0

    def fade(self, n_passes: int = 1) -> None:
        """Let counts from generating fade and recompute the chances. Call it after every pass."""
        self._recent *= _DECAY**n_passes
        seen, accepted = self._recent
        # Where few were seen the shares are shrunk towards those of the texts, which are scaled for each rank by how
        # acceptance differs from the texts.
        expected, half = (self._base * seen).sum(axis=(0, 2)), self._weight / 2
        shift = (accepted.sum(axis=(0, 2)) + half) / (expected + half)
        prior = np.clip(self._base * shift[None, :, None], 0.0, 1.0)
        self._chances = (accepted + self._weight * prior) / (seen + self._weight)

    @property
    def agreement(self) -> float:
        """The share of the draft's first choices that are the target's, in texts and while generating."""
        first, right = (self.counts + self._run)[:, :, 0].sum(axis=(1, 2))
        return float((right + _USUAL * _USUAL_NODES) / (first + _USUAL_NODES))

    @property
    def by_rank(self) -> list[float]:
        """p_k: the chance that the k-th child of a node is accepted, and none before it (Sequoia, arXiv 2402.12374).

        The first is the agreement; the others divide what is left as below roots, which adaptive trees count whole.
        """
        seen, accepted = (self.counts + self._run)[:, 0].sum(axis=2)
        taken = (accepted / np.bincount(_RANK_BUCKET))[_RANK_BUCKET][1:]
        few, halves = (1 - _USUAL) * _USUAL_NODES, 0.5 ** np.arange(1, MAX_RANK)
        others = (1 - self.agreement) * (taken + few * halves) / (seen[0] - accepted[0] + few)
        return [round(float(p), 4) for p in (self.agreement, *others)]

    @property
    def n_counted(self) -> int:
        """Number of nodes whose children were counted, in texts and while generating."""
        return int((self.counts + self._run)[0, :, 0].sum())

    def with_run(self) -> Calibration:
        """A calibration in which what was counted while generating counts as texts, for a later run."""
        counts = self.counts + self._run
        return Calibration(min(_MOST_KEPT / max(float(counts[0, :, 0].sum()), 1.0), 1.0) * counts)


def _depth_bucket(depth: int) -> int:
    return int(np.searchsorted(_DEPTH_STARTS, depth, side="right")) - 1
