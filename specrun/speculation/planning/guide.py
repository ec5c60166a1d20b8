"""Cost tables, calibration and the run's rate, by which drafters decide how large a tree pays."""

from __future__ import annotations

import numpy as np

from specrun.speculation.planning.calibration import Calibration
from specrun.speculation.planning.costs import CostModel, Milliseconds
from specrun.speculation.planning.pass_times import PassTimes
from specrun.speculation.record import PassRecord

# All chosen by hand.
_NEWEST_WEIGHT = 0.15  # weight of the newest pass in `draft_slowness`
_BOUNDS = (0.1, 10.0)  # bounds of one pass's measured drafting time divided by the expected one
_RUN_DECAY = 0.98  # factor on the run's tokens and time after each pass, so that about the last 50 passes count
_EXPECTED_TOKENS = 16.0  # the rate that is expected at first counts as much as this many measured tokens


class Guide:
    """Cost tables, calibration and rate of a run.

    The best tree for a pass maximises `accepted tokens - rate * milliseconds`, where `rate` is the tokens per
    millisecond of the whole run. A pass for which this is positive raises the average, others lower it (Dinkelbach's
    condition for the maximum of a ratio of sums). Measured pass times correct the tables (`PassTimes`).

    expected_draft_ms: milliseconds of drafting before the current pass by the tables, which drafters set.
    draft_slowness: measured drafting time divided by the expected one.
    """

    def __init__(self, costs: CostModel, calibration: Calibration | None = None, rate: float = 0.0) -> None:
        """rate: tokens per millisecond that the run is expected to reach; 0 if unknown."""
        self.costs = costs
        self.calibration = calibration or Calibration()
        self.expected_draft_ms = 0.0
        self.draft_slowness = 1.0
        self._target = PassTimes(costs.target)
        self.expect(rate)

    def expect(self, rate: float) -> None:
        """Begin a run that is expected to reach `rate` tokens per millisecond; 0 if unknown."""
        self.rate = rate
        self._run_tokens = _EXPECTED_TOKENS if rate else 0.0
        self._run_ms = _EXPECTED_TOKENS / rate if rate else 0.0

    def target_row(self, ctx: int) -> Milliseconds:
        """float64[largest + 1]: row[n] is the milliseconds of a target pass over n tokens after `ctx` tokens."""
        return self._target.row(ctx)

    def plain_ms(self, ctx: int) -> float:
        """Milliseconds that plain decoding takes for one token after `ctx` tokens."""
        return self._target.ms(1, ctx) + self.costs.overhead.step

    def best_size(self, chances: Milliseconds, target_row: Milliseconds, budget: int, pending: int) -> int:
        """The number of nodes, root included, of the best tree.

        chances: float64[n], chances of all offered nodes in falling order, beginning with the root's 1.
        target_row: see `target_row`.
        budget: most nodes.
        pending: committed tokens that the target decodes again before the tree.
        """
        most = min(len(chances), budget, len(target_row) - 1 - pending)
        sizes = np.array([n - pending for n in self.costs.target.sizes], np.intp)
        sizes = np.append(sizes[(sizes >= 1) & (sizes <= most)], max(most, 1))
        value = np.cumsum(chances)[sizes - 1] - self.rate * target_row[sizes + pending]
        return int(sizes[value.argmax()])

    def follow(self, record: PassRecord) -> None:
        """Update the rate after a pass with drafted tokens.

        The rate is the average of many passes, so that a few good or bad passes do not change which nodes pay. It is
        at least the rate of plain decoding, which is always possible.
        """
        self._run_tokens = _RUN_DECAY * self._run_tokens + record.n_tokens
        self._run_ms = _RUN_DECAY * self._run_ms + record.seconds * 1e3
        self.rate = max(self._run_tokens / self._run_ms if self._run_ms else 0.0, 1 / self.plain_ms(record.ctx))

    def learn(self, record: PassRecord) -> None:
        """Update pass times, drafting times and the calibration after a pass."""
        self._target.record(record.n_target, record.ctx, record.target_seconds * 1e3)
        if len(record.tree) == 1:
            return
        if self.expected_draft_ms > 0:
            ratio = min(max(record.draft_seconds * 1e3 / self.expected_draft_ms, _BOUNDS[0]), _BOUNDS[1])
            self.draft_slowness += _NEWEST_WEIGHT * (ratio - self.draft_slowness)
        path = record.accepted.path
        for depth, node in enumerate(path, start=1):
            probabilities = record.tree.probabilities
            # Only children with a probability of the draft model count, in the order of their probabilities.
            children = [child for child in record.tree.children[node] if np.isfinite(probabilities[child])]
            children.sort(key=lambda child: -probabilities[child])
            if children:
                taken = path[depth] if depth < len(path) else None
                matched = children.index(taken) if taken in children else None
                self.calibration.count(depth, probabilities[children], matched)
        self.calibration.fade()
