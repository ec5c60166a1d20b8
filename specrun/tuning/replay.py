"""Replays a plan over recorded texts: tokens per pass, and with the cost tables tokens per second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specrun.profiles.tuning_rows import PredictionRow
from specrun.speculation.drafter import DraftLimits
from specrun.speculation.method import Drafting
from specrun.speculation.plan import Plan
from specrun.speculation.planning.calibration import Calibration
from specrun.speculation.planning.costs import CostModel
from specrun.speculation.planning.guide import Guide
from specrun.speculation.sample_and_match import Accepted
from specrun.speculation.tree import ROOT, TokenTree, n_in_order
from specrun.tuning.trace import Position, Replay, Trace

_DINKELBACH_ROUNDS = 3
_NO_LIMIT = 256  # leaf paths


@dataclass(frozen=True)
class Prediction:
    """What a plan is expected to do."""

    plan: Plan
    tokens_per_second: float
    tokens_per_pass: float
    accepted: tuple[int, ...] = ()  # passes by accepted length, from 1 on
    largest: int = 1  # nodes of its largest tree, root included

    @property
    def row(self) -> PredictionRow:
        """The prediction as a profile keeps it."""
        plan = self.plan
        return PredictionRow(
            str(plan), plan.method.name, plan.budget, plan.depth, self.tokens_per_second, self.tokens_per_pass,
            list(self.accepted),
        )  # fmt: skip


@dataclass
class _Total:
    """The sums over the passes of one replay."""

    tokens: int = 0
    passes: int = 0
    ms: float = 0.0
    largest: int = 1  # nodes of the largest tree

    @property
    def rate(self) -> float:
        """Tokens per millisecond."""
        return self.tokens / self.ms


def predict(
    plan: Plan, traces: Sequence[Trace], costs: CostModel, calibration: Calibration, temperature: float
) -> Prediction:
    """What `plan` does on the recorded texts, which were written at this temperature."""
    guide = Guide(costs, calibration)
    if not plan.method.is_adaptive:
        total, lengths = _replay(plan, traces, guide, temperature)
        return _prediction(plan, total, lengths)
    # Adaptive trees depend on the rate of the whole replay, which depends on the trees: a few rounds settle it.
    ctx = traces[0].positions[0].ctx
    guide.rate = 1 / guide.plain_ms(ctx)
    for _ in range(_DINKELBACH_ROUNDS):
        total, lengths = _replay(plan, traces, guide, temperature)
        is_settled = abs(total.rate - guide.rate) < 0.01 * guide.rate
        guide.rate = max(total.rate, 1 / guide.plain_ms(ctx))
        if is_settled:
            break
    return _prediction(plan, total, lengths)


def _prediction(plan: Plan, total: _Total, lengths: list[int]) -> Prediction:
    counts = tuple(int(count) for count in np.bincount(lengths, minlength=2)[1:])
    return Prediction(plan, total.rate * 1e3, total.tokens / total.passes, counts, total.largest)


def _replay(plan: Plan, traces: Sequence[Trace], guide: Guide, temperature: float) -> tuple[_Total, list[int]]:
    """The sums over all texts, and the accepted length of every pass."""
    total = _Total()
    lengths: list[int] = []
    for trace in traces:
        place, pending, n_new = 0, 0, 1
        while place < len(trace.positions):
            position = trace.positions[place]
            tree, widths = _draft(plan, position, pending, guide, temperature)
            accepted = _accept(tree, position)
            n_tokens = len(accepted.tokens)
            total.largest = max(total.largest, len(tree))
            total.ms += _pass_ms(position.ctx, len(tree) + pending, n_new, widths, guide)
            total.tokens += n_tokens
            total.passes += 1
            lengths.append(n_tokens)
            # The target decodes tokens again that do not lie in consecutive cells.
            pending = len(accepted.path) - n_in_order(accepted.path)
            n_new = n_tokens
            place += n_tokens
    return total, lengths


def _draft(
    plan: Plan, position: Position, pending: int, guide: Guide, temperature: float
) -> tuple[TokenTree, list[int]]:
    """The tree that `plan` drafts at a position, and the nodes that each of its draft passes expands."""
    replay = Replay(position)
    drafter = Drafting(plan, temperature, replay, guide).drafter()
    if drafter is None:
        return TokenTree.root_only(ROOT), []
    limits = DraftLimits(plan.budget, plan.depth, plan.width, _NO_LIMIT, pending)
    return drafter.draft([ROOT] * position.ctx, limits), replay.widths


def _accept(tree: TokenTree, position: Position) -> Accepted:
    path, tokens = [ROOT], []
    for token in position.continuation:
        tokens.append(token)
        child = tree.child_with_token(path[-1], token)
        if child is None:
            break
        path.append(child)
    return Accepted(path[: len(tokens)], tokens)


def _pass_ms(ctx: int, n_target: int, n_new: int, widths: Sequence[int], guide: Guide) -> float:
    """Milliseconds of a target pass over `n_target` tokens and of the draft passes before it.

    The first draft pass takes in the `n_new` tokens that were committed last; the others expand `widths` nodes.
    """
    ms = guide.costs.target.ms(n_target, ctx) + guide.costs.overhead.step
    for i, width in enumerate(widths):
        ms += guide.costs.level_ms(n_new if i == 0 else width, ctx)
    return ms
