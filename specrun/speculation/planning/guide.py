"""What a step is weighed with while generating: cost tables, calibrated chances, and the rate to beat."""

from __future__ import annotations

import numpy as np

from specrun.speculation.planning.calibration import Calibration
from specrun.speculation.planning.costs import CostModel, Milliseconds
from specrun.speculation.planning.pass_times import PassTimes
from specrun.speculation.record import PassRecord

_NEWS = 0.15  # weight of the newest step in what is known of drafting times
_BOUNDS = (0.1, 10.0)
_RUN_DECAY = 0.98  # weight of what was known of the run's rate, per pass: about the last 50 passes count
_PROMISED = 16.0  # tokens that the rate expected at first weighs in it


class Guide:
    """Everything a cost-aware step asks.

    The best tree of a step is the one that maximises `accepted tokens - rate * milliseconds`, where `rate` is the
    tokens per millisecond of the whole run: a step worth more than that raises the average, one worth less lowers it
    (Dinkelbach's condition for the maximum of a ratio of sums).

    What the tables say is kept up to date by the times of the passes (`PassTimes`).
    """

    def __init__(self, costs: CostModel, calibration: Calibration | None = None, rate: float = 0.0) -> None:
        """rate: tokens a millisecond that the run is expected to reach."""
        self.costs = costs
        self.calibration = calibration or Calibration()
        self.expected_draft_ms = 0.0  # of the step in progress, as the tables had it
        self.draft_slowness = 1.0  # how much longer drafting takes now than the tables say
        self._target = PassTimes(costs.target)
        self.expect(rate)

    def expect(self, rate: float) -> None:
        """A run begins that should reach `rate` tokens a millisecond; 0 if nobody knows."""
        self.rate = rate
        self._run_tokens = _PROMISED if rate else 0.0
        self._run_ms = _PROMISED / rate if rate else 0.0

    def target_row(self, ctx: int) -> Milliseconds:
        """float64[n + 1]: milliseconds of a target pass over n tokens, as things are now."""
        return self._target.row(ctx)

    def plain_ms(self, ctx: int) -> float:
        """Milliseconds of a step of plain decoding, as things are now."""
        return self._target.ms(1, ctx) + self.costs.overhead.step

    def best_size(self, chances: Milliseconds, target_row: Milliseconds, budget: int, pending: int) -> int:
        """Nodes, root included, that are worth a pass.

        chances: float64[n], of all nodes offered, best (the root, 1) first. target_row: of `target_row`. pending:
        committed tokens that the target decodes again in front of the tree.
        """
        most = min(len(chances), budget, len(target_row) - 1 - pending)
        sizes = np.array([n - pending for n in self.costs.target.sizes], np.intp)
        sizes = np.append(sizes[(sizes >= 1) & (sizes <= most)], max(most, 1))
        value = np.cumsum(chances)[sizes - 1] - self.rate * target_row[sizes + pending]
        return int(sizes[value.argmax()])

    def record_draft(self, ms: float) -> None:
        """The drafting of a step took `ms`, the drafter's own work included."""
        if self.expected_draft_ms > 0:
            ratio = min(max(ms / self.expected_draft_ms, _BOUNDS[0]), _BOUNDS[1])
            self.draft_slowness += _NEWS * (ratio - self.draft_slowness)

    def follow(self, step: PassRecord) -> None:
        """A step that drafted is over: keep the rate that further steps are weighed with that of the run.

        A few lucky passes must not make every further node look too dear, nor a few unlucky ones each look worth it;
        and plain decoding is always to be had.
        """
        self._run_tokens = _RUN_DECAY * self._run_tokens + step.n_tokens
        self._run_ms = _RUN_DECAY * self._run_ms + step.seconds * 1e3
        self.rate = max(self._run_tokens / self._run_ms if self._run_ms else 0.0, 1 / self.plain_ms(step.ctx))

    def learn(self, step: PassRecord) -> None:
        """Take in the times of a step, and which of the children that it saw were accepted."""
        self._target.record(step.n_target, step.ctx, step.target_seconds * 1e3)
        if len(step.tree) == 1:
            return
        self.record_draft(step.draft_seconds * 1e3)
        path = step.accepted.path
        for depth, node in enumerate(path, start=1):
            probabilities = step.tree.probabilities
            # Those that the draft model was asked about, in its own order.
            children = [child for child in step.tree.children[node] if np.isfinite(probabilities[child])]
            children.sort(key=lambda child: -probabilities[child])
            if children:
                taken = path[depth] if depth < len(path) else None
                matched = children.index(taken) if taken in children else None
                self.calibration.count(depth, probabilities[children], matched)
        self.calibration.fade()
