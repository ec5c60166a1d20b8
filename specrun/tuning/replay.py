"""Replays a plan over recorded texts: tokens per pass, and with the cost tables tokens per second with their error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from specrun.llama import TargetContext
from specrun.profiles.profile import PredictionRow
from specrun.speculation.accept import Accepted
from specrun.speculation.drafter import DraftLimits
from specrun.speculation.method import Drafting, Plan
from specrun.speculation.planning.calibration import Calibration
from specrun.speculation.planning.costs import CostModel
from specrun.speculation.planning.guide import Guide
from specrun.speculation.tree import ROOT, TokenTree, n_in_order
from specrun.tuning.rates import BLOCK, BlockTimes, block_seconds
from specrun.tuning.trace import Position, Replay, Trace

_DINKELBACH_ROUNDS = 3


@dataclass(frozen=True)
class TargetLimits:
    """What the target's cache allows, as `TargetContext` has it."""

    leaves: int = 256  # most leaf paths of a tree
    # Most committed tokens that may wait to be decoded again, where a pass has to be decoded again unless all of it is
    # accepted; None where only tokens that do not lie in consecutive cells are.
    most_pending: int | None = None

    @classmethod
    def of(cls, target: TargetContext) -> TargetLimits:
        """The limits of a loaded target. Its number of sequences is none: contexts are made for their plans."""
        return cls(1, target.most_pending) if target.max_leaves == 1 else ANY_TREE


ANY_TREE = TargetLimits()


@dataclass(frozen=True)
class Prediction:
    """What a plan is expected to do."""

    plan: Plan
    tokens_per_second: float
    tokens_per_pass: float
    accepted: tuple[int, ...] = ()  # passes by accepted length, from 1 on
    largest: int = 1  # nodes of its largest tree, root included
    times: BlockTimes = field(default_factory=BlockTimes)  # times of the recorded texts
    draft_share: float = 0.0  # share of the time that drafting takes

    @property
    def error(self) -> float:
        """The standard error of the rate, in tokens per second, as further texts differ; 0 without recorded texts."""
        return self.tokens_per_second * self.times.log_rate.error if self.times.texts else 0.0

    @property
    def row(self) -> PredictionRow:
        plan = self.plan
        return PredictionRow(
            str(plan), plan.method.name, plan.budget, plan.depth, self.tokens_per_second, self.tokens_per_pass,
            list(self.accepted), self.error,
        )  # fmt: skip


@dataclass
class _Passes:
    """The passes of the replay of one text."""

    n_positions: int  # that were recorded; the last pass may go further, but blocks behind them do not count
    lengths: list[int] = field(default_factory=list)  # committed tokens
    ms: list[float] = field(default_factory=list)
    draft_ms: float = 0.0  # of all passes together
    largest: int = 1  # nodes of the largest tree

    @property
    def blocks(self) -> tuple[float, ...]:
        return block_seconds(self.lengths, [ms / 1e3 for ms in self.ms])[: max(self.n_positions // BLOCK, 1)]


def predict(
    plan: Plan,
    traces: Sequence[Trace],
    costs: CostModel,
    calibrations: Sequence[Calibration],
    temperature: float,
    limits: TargetLimits = ANY_TREE,
) -> Prediction:
    """What `plan` does on the recorded texts, which were written at this temperature.

    calibrations: one for each text, for adaptive trees. limits: of the target.
    """
    guides = [Guide(costs, calibration) for calibration in calibrations]

    def replayed() -> Prediction:
        texts = zip(traces, guides, strict=False)
        return _prediction(plan, [_replay(plan, trace, guide, temperature, limits) for trace, guide in texts])

    if not plan.method.is_adaptive:
        return replayed()
    # Adaptive trees depend on the rate of the whole replay, which depends on the trees: a few rounds settle it.
    rate = plain_rate = 1 / guides[0].plain_ms(traces[0].positions[0].ctx)
    for _ in range(_DINKELBACH_ROUNDS):
        for guide in guides:
            guide.rate = rate
        prediction = replayed()
        before, rate = rate, max(prediction.tokens_per_second / 1e3, plain_rate)
        if abs(rate - before) < 0.01 * before:
            break
    return prediction


def _prediction(plan: Plan, replays: Sequence[_Passes]) -> Prediction:
    lengths = [length for one in replays for length in one.lengths]
    counts = tuple(int(count) for count in np.bincount(lengths, minlength=2)[1:])
    times = BlockTimes(tuple(one.blocks for one in replays))
    largest = max(one.largest for one in replays)
    draft_share = sum(one.draft_ms for one in replays) / sum(ms for one in replays for ms in one.ms)
    return Prediction(plan, times.tokens_per_second, sum(lengths) / len(lengths), counts, largest, times, draft_share)


def _replay(plan: Plan, trace: Trace, guide: Guide, temperature: float, limits: TargetLimits) -> _Passes:
    passes = _Passes(len(trace.positions))
    place, pending, n_new = 0, 0, 1
    while place < len(trace.positions):
        position = trace.positions[place]
        alone_ms = 0.0
        if limits.most_pending is not None and pending > limits.most_pending:
            alone_ms, pending = guide.costs.target.ms(pending, position.ctx), 0
        tree, widths = _draft(plan, position, pending, guide, temperature, limits.leaves)
        accepted = _accept(tree, position)
        if guide.costs.target.padding.in_order:
            accepted = accepted.first(n_in_order(accepted.path))
        n_tokens = len(accepted.tokens)
        passes.largest = max(passes.largest, len(tree))
        # The first draft pass takes in the tokens that were committed last; the others expand `widths` nodes.
        levels = [n_new, *widths[1:]] if widths else []
        draft_ms = sum(guide.costs.level_ms(n, position.ctx) for n in levels)
        passes.draft_ms += draft_ms
        target_ms = guide.costs.target.ms(len(tree) + pending, position.ctx)
        passes.ms.append(alone_ms + target_ms + guide.costs.overhead.step + draft_ms)
        passes.lengths.append(n_tokens)
        # The target decodes tokens again that do not lie in consecutive cells, or all of a pass that is rolled back.
        if limits.most_pending is None:
            pending = len(accepted.path) - n_in_order(accepted.path)
        else:
            pending = 0 if len(accepted.path) == len(tree) else pending + len(accepted.path)
        n_new = n_tokens
        place += n_tokens
    return passes


def _draft(
    plan: Plan, position: Position, pending: int, guide: Guide, temperature: float, leaves: int
) -> tuple[TokenTree, list[int]]:
    """The tree that `plan` drafts at a position, and the nodes that each of its draft passes expands."""
    replay = Replay(position)
    drafter = Drafting(plan, temperature, replay, guide).drafter()
    if drafter is None:
        return TokenTree.root_only(ROOT), []
    limits = DraftLimits(plan.budget, plan.depth, plan.width, leaves, pending)
    return drafter.draft([ROOT] * position.ctx, limits).tree, replay.widths


def _accept(tree: TokenTree, position: Position) -> Accepted:
    path, tokens = [ROOT], []
    for token in position.continuation:
        tokens.append(token)
        child = tree.child_with_token(path[-1], token)
        if child is None:
            break
        path.append(child)
    return Accepted(path[: len(tokens)], tokens)
