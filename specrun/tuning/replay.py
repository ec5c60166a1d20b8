"""Replays a plan over recorded texts: tokens a pass, and by the cost tables tokens a second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

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
_NO_LIMIT = 256


@dataclass(frozen=True)
class Prediction:
    """What a plan is expected to do. accepted: steps by accepted length (index 0 is length 1). largest: nodes of its
    largest tree, root included.
    """

    plan: Plan
    tokens_per_second: float
    tokens_per_pass: float
    accepted: tuple[int, ...] = ()
    largest: int = 1


@dataclass
class _Run:
    tokens: int = 0
    steps: int = 0
    ms: float = 0.0
    largest: int = 1

    @property
    def rate(self) -> float:
        return self.tokens / self.ms


def predict(
    plan: Plan, traces: Sequence[Trace], costs: CostModel, calibration: Calibration, temperature: float
) -> Prediction:
    """What `plan` does on these texts. temperature: at which the texts were written."""
    guide = Guide(costs, calibration)
    if not plan.method.is_adaptive:
        run, lengths = _replay(plan, traces, guide, temperature)
        return _prediction(plan, run, lengths)
    # An adaptive step is weighed by the rate of the whole run, which follows from the steps: a few rounds settle it.
    ctx = traces[0].positions[0].ctx
    guide.rate = 1 / guide.plain_ms(ctx)
    for _ in range(_DINKELBACH_ROUNDS):
        run, lengths = _replay(plan, traces, guide, temperature)
        settled = abs(run.rate - guide.rate) < 0.01 * guide.rate
        guide.rate = max(run.rate, 1 / guide.plain_ms(ctx))
        if settled:
            break
    return _prediction(plan, run, lengths)


def _prediction(plan: Plan, run: _Run, lengths: list[int]) -> Prediction:
    counts = np.bincount(lengths, minlength=2)[1:]
    return Prediction(plan, run.rate * 1e3, run.tokens / run.steps, tuple(int(count) for count in counts), run.largest)


def _replay(plan: Plan, traces: Sequence[Trace], guide: Guide, temperature: float) -> tuple[_Run, list[int]]:
    run = _Run()
    lengths: list[int] = []
    for trace in traces:
        place, pending, n_new = 0, 0, 1
        while place < len(trace.positions):
            position = trace.positions[place]
            tree, widths = _draft(plan, position, pending, guide, temperature)
            accepted = _accept(tree, position)
            run.largest = max(run.largest, len(tree))
            run.ms += _step_ms(position.ctx, len(tree) + pending, n_new, widths, guide)
            # Steps that the end of the text cuts short would say less of a plan than it does.
            n_tokens = len(accepted.tokens)
            run.tokens += n_tokens
            run.steps += 1
            lengths.append(n_tokens)
            # What the target decodes again, as it does not lie in consecutive cells.
            pending = len(accepted.path) - n_in_order(accepted.path)
            n_new = n_tokens
            place += n_tokens
    return run, lengths


def _draft(
    plan: Plan, position: Position, pending: int, guide: Guide, temperature: float
) -> tuple[TokenTree, list[int]]:
    """The tree that `plan` drafts at a position, and the widths of its draft passes."""
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


def _step_ms(ctx: int, n_target: int, n_new: int, widths: Sequence[int], guide: Guide) -> float:
    """n_new: tokens that the draft takes in before its first candidates, which is its first pass."""
    ms = guide.costs.target.ms(n_target, ctx) + guide.costs.overhead.step
    for i, width in enumerate(widths):
        ms += guide.costs.level_ms(n_new if i == 0 else width, ctx)
    return ms
