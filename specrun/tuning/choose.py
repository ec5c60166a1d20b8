"""Which plans are considered, how they are ranked, and which of them are worth running."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from specrun.long_run import Run
from specrun.speculation.drafters.guessed import COPIED_NODES
from specrun.speculation.method import OFF, overlapped
from specrun.speculation.plan import Plan
from specrun.speculation.planning.costs import CostModel
from specrun.speculation.planning.plan_space import PlanSpace
from specrun.speculation.registry import METHODS
from specrun.tuning.replay import Prediction, predict
from specrun.tuning.trace import MeasuredAcceptance


def candidates(costs: CostModel, largest: int, ctx: int, acceptance: Sequence[float]) -> list[Plan]:
    """Every plan that the methods propose because it could pay.

    largest: most nodes of a tree. ctx: context length at which costs are judged. acceptance: the chance that the k-th
    candidate is accepted and none before it.
    """
    if costs.draft is None:
        return [OFF.plan()]
    space = PlanSpace(costs, largest, ctx, acceptance)
    return [plan for method in METHODS.values() for plan in method.candidates(space)]


def ranked(plans: Sequence[Plan], measured: MeasuredAcceptance, costs: CostModel, run: Run) -> list[Prediction]:
    """Predictions for the plans, fastest first.

    The method with the most plans is replayed last, and only until the run's deadline.
    """
    acceptance = measured.acceptance
    counts = Counter(plan.method for plan in plans)
    most = max(counts.values())
    predictions = []
    for plan in sorted(plans, key=lambda plan: counts[plan.method]):
        if len(counts) > 1 and counts[plan.method] == most and run.is_over():
            break
        prediction = predict(plan, measured.traces, costs, acceptance.calibration, acceptance.temperature)
        if plan.method.is_adaptive and prediction.largest > 1:
            # A bound that the trees never reach only makes the contexts larger, and says nothing in the plan's name.
            bound = next(n for n in costs.target.sizes if n >= prediction.largest)
            prediction = replace(prediction, plan=plan.method.plan(bound, plan.depth, plan.width))
        predictions.append(prediction)
    return sorted(predictions, key=lambda p: -p.tokens_per_second)


def worth_running(predictions: Sequence[Prediction], largest: int) -> list[Prediction]:
    """The predictions that are checked by running: the best plan of each method, and a smaller and a larger tree.

    Where a plan's method has a variant with draft sources, that is run as well: sources gain where a text copies, which
    calibration texts do not. The likely plans are run once more with overlap. Neither gain can be predicted.

    predictions: fastest first. largest: most nodes of a tree.
    """
    best_of_methods = list({p.plan.method: p for p in reversed(predictions)}.values())[::-1]
    chosen = [predictions[0], *best_of_methods]
    trees = [p for p in predictions if p.plan.method.kind == "tree" and not p.plan.method.wants_shape]
    if trees:
        middle = trees[0].plan.budget
        chosen += [p for p in trees if p.plan.budget <= middle / 1.5][:1]
        chosen += [p for p in trees if p.plan.budget >= middle * 1.5][:1]
    merged = [with_sources(p, largest) for p in chosen if p.plan.method.with_sources]
    chosen += merged
    fixed = [p for p in chosen if p.plan.drafts and not p.plan.method.is_adaptive]
    likely = [p for p in (*fixed[:1], *merged) if p.plan.method.can_overlap]
    chosen += [replace(p, plan=overlapped(p.plan)) for p in likely]
    return sorted(dict.fromkeys(chosen), key=lambda p: -p.tokens_per_second)


def with_sources(prediction: Prediction, largest: int) -> Prediction:
    """The same prediction for a plan that asks draft sources as well.

    Where text is copied, a guess goes on for dozens of tokens that cost no draft pass. So the tree may be larger than
    the draft's trees, up to `largest` nodes, and as deep as it is large (docs/benchmarks/sources.md).
    """
    plan = prediction.plan
    assert plan.method.with_sources
    budget = max(plan.budget, min(max(2 * plan.budget, COPIED_NODES), largest))
    return replace(
        prediction,
        plan=replace(plan, method=plan.method.with_sources, budget=budget, depth=max(plan.depth, budget - 1)),
    )
