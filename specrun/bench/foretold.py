"""What is expected of each pass before it is made, by the costs and chances by which plans are chosen."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from specrun.speculation.controllers.chooser import PlanChooser
from specrun.speculation.method import Plan
from specrun.speculation.planning.guide import Guide, PassRecord


@dataclass
class Foretold:
    """A chooser with what its guide expected of its passes: tokens by the calibrated chances of the trees' nodes, and
    milliseconds by the times that are known of target and draft passes.

    A pass counts before anything is learned of it, so this is a forecast, made again for each pass.
    """

    chooser: PlanChooser
    tokens: float = 0.0
    ms: float = 0.0

    @property
    def tokens_per_second(self) -> float | None:
        """None if no pass was foretold: there is no guide, it does not know yet what a plain pass takes, or trees have
        no probabilities of the draft, as chains have none.
        """
        return None if not self.ms or math.isnan(self.tokens) else 1e3 * self.tokens / self.ms

    @property
    def guide(self) -> Guide | None:
        return self.chooser.guide

    @property
    def needs_draft(self) -> bool:
        return self.chooser.needs_draft

    def plan(self, n_texts: int = 1) -> Plan:
        return self.chooser.plan(n_texts)

    def read_prompt(self, n_tokens: int, seconds: float, n_unread: int) -> None:
        self.chooser.read_prompt(n_tokens, seconds, n_unread)

    def record(self, record: PassRecord) -> None:
        if (guide := self.guide) and guide.knows_plain:
            tree, plan = record.tree, self.plan()
            # Scores are chances where the tree was grown by them. Draft sources have no others.
            by_score = plan.can_shrink or len(tree) == 1
            self.tokens += float(np.exp(tree.scores).sum()) if by_score else guide.calibration.expected_tokens(tree)
            self.ms += guide.expected_ms(record)
        self.chooser.record(record)

    def __str__(self) -> str:
        return str(self.chooser)
