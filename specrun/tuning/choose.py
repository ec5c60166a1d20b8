"""Which plans are considered, how they are ranked, and which of them are worth running."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from specrun.long_run import Run
from specrun.speculation.drafters.guessed import COPIED_NODES
from specrun.speculation.method import OFF, Plan
from specrun.speculation.planning.costs import CostModel
from specrun.speculation.planning.plan_space import PlanSpace
from specrun.speculation.registry import METHODS
from specrun.tuning.rates import Estimate
from specrun.tuning.replay import ANY_TREE, Prediction, TargetLimits, predict
from specrun.tuning.trace import MeasuredAcceptance

# Relative error of the difference between two predictions beside that of their texts: the tables are medians, and the
# machine's speed varies. Rates of repeated runs scatter by about as much.
TABLES_ERROR = 0.03
# Natural logarithm of the gain that draft sources bring an adaptive tree, and its scatter over kinds of text: at T=0.8
# 1.01 to 1.22 times (docs/benchmarks/sources.md), greedily more.
_SOURCES = Estimate(0.1, 0.1)

# All chosen by hand.
_SCREENED = 0.25  # share of the texts on which all plans are replayed
_HOPELESS = 0.3  # a plan that was slower by this share there, and by twice the error, is not replayed on the others
_REPLAYED = 8  # best plans that are replayed on all texts even after the deadline: each takes a second at most
_CHAIN_SLOWER = 0.3  # the best chain is run unless it is slower by this share
_ERRORS = 2.0  # a plan that is slower by more than this many standard errors is not run
_HIDDEN = 0.05  # least share of the time that drafting takes where drafting ahead is run; it cannot save more


def candidates(
    costs: CostModel, largest: int, ctx: int, acceptance: Sequence[float], limits: TargetLimits = ANY_TREE
) -> list[Plan]:
    """Every plan that the methods propose because it could pay. Where a pass checks one path, fixed trees are left out:
    a pass would check their best path only, and there is a chain of that depth.

    largest: most nodes of a tree. ctx: context length at which costs are judged. acceptance: the chance that the k-th
    candidate is accepted and none before it.
    """
    if costs.draft is None:
        return [OFF.plan()]
    space = PlanSpace(costs, largest, ctx, acceptance)
    plans = [plan for method in METHODS.values() for plan in method.candidates(space)]
    if limits.leaves == 1:
        return [plan for plan in plans if plan.is_chain or plan.method.is_adaptive or not plan.drafts]
    # A tree of a fixed shape that is a single path is the chain of its depth, which is among them.
    return [plan for plan in plans if plan.shape is None or plan.shape.n_leaves > 1]


def ranked(
    plans: Sequence[Plan], measured: MeasuredAcceptance, costs: CostModel, run: Run, limits: TargetLimits = ANY_TREE
) -> list[Prediction]:
    """Predictions for the plans, fastest first.

    All are replayed on a part of the texts, and those that may be the best, likeliest first, on all of them; after the
    run's deadline only a few are.
    """
    acceptance = measured.acceptance
    calibrations = measured.calibrations_of_others()

    def replayed(plan: Plan, n_texts: int) -> Prediction:
        found = predict(plan, measured.traces[:n_texts], costs, calibrations, acceptance.temperature, limits)
        if plan.method.is_adaptive and found.largest > 1:
            # A bound that the trees never reach only makes the contexts larger, and says nothing in the plan's name.
            bound = next(n for n in costs.target.sizes if n >= found.largest)
            found = replace(found, plan=plan.method.plan(bound, plan.depth, plan.width))
        return found

    n_texts = len(measured.traces)
    n_screened = max(math.ceil(_SCREENED * n_texts), 1)
    screened = [(replayed(plan, n_screened), plan) for plan in plans]
    screened.sort(key=lambda one: -one[0].tokens_per_second)
    best = screened[0][0]
    predictions = []
    for i, (prediction, plan) in enumerate(screened):
        behind = best.times.log_ratio(prediction.times)
        is_hopeless = behind.value > max(_HOPELESS, _ERRORS * behind.error)
        is_left_out = plan.drafts and (is_hopeless or (i >= _REPLAYED and run.is_over()))
        predictions.append(prediction if is_left_out or n_screened == n_texts else replayed(plan, n_texts))
    return sorted(predictions, key=lambda p: -p.tokens_per_second)


def worth_running(predictions: Sequence[Prediction], largest: int, most: int) -> list[Prediction]:
    """At most `most` predictions that are checked by running, most worth it first, and behind them plain decoding.

    They are the best plan, the best plan of each other method that may be the best of all, and the best chain. An
    adaptive tree is run with draft sources as well: they gain where a text copies, which calibration texts do not. The
    best plan is run once more with overlap, if drafting takes long enough. Neither gain can be predicted.

    predictions: fastest first. largest: most nodes of a tree.
    """
    off = next(p for p in predictions if not p.plan.drafts)
    drafting = [p for p in predictions if p.plan.drafts]
    if not drafting:
        return [off]
    best = drafting[0]
    likely, merged = [], []
    for prediction in list({p.plan.method: p for p in reversed(drafting)}.values())[::-1]:
        behind = best.times.log_ratio(prediction.times)
        allowed = _ERRORS * behind.widened(TABLES_ERROR).error
        if prediction.plan.method.with_sources and behind.value < allowed + _SOURCES.value + _SOURCES.error:
            merged.append(with_sources(prediction, largest))
        if behind.value < (max(allowed, _CHAIN_SLOWER) if prediction.plan.is_chain else allowed):
            likely.append(prediction)
    chosen = [best, *merged, *(p for p in likely if p is not best)]
    ahead = [p for p in (*merged, best) if p.plan.method.can_overlap and p.draft_share > _HIDDEN]
    chosen += [replace(p, plan=replace(p.plan, overlap=True)) for p in ahead[:1]]
    return [*chosen[:most], off]


def predicted_ratio(one: Prediction, other: Prediction) -> Estimate:
    """The natural logarithm of how many times as fast as `other` `one` is, by what is known before either is run.

    Nothing is known about overlap. Draft sources are expected to bring what they brought on other pairs.
    """
    if one.plan.overlap != other.plan.overlap:
        return Estimate(0.0, math.inf)
    ratio = one.times.log_ratio(other.times).widened(TABLES_ERROR)
    gain = bool(one.plan.method.sources) - bool(other.plan.method.sources)
    return Estimate(ratio.value + gain * _SOURCES.value, ratio.error).widened(abs(gain) * _SOURCES.error)


def with_sources(prediction: Prediction, largest: int) -> Prediction:
    """The same prediction for a plan that asks draft sources as well.

    Where text is copied, a guess goes on for dozens of tokens that cost no draft pass. So the tree may be larger than
    the draft's trees, up to `largest` nodes, and as deep as it is large (docs/benchmarks/sources.md).
    """
    plan = prediction.plan
    assert plan.method.with_sources
    budget = max(plan.budget, min(max(2 * plan.budget, COPIED_NODES), largest))
    plan = replace(plan, method=plan.method.with_sources, budget=budget, depth=max(plan.depth, budget - 1))
    return replace(prediction, plan=plan)
