"""The plans that are considered, and what each is predicted to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from specrun.engine.growth_maps import MAX_DEPTH
from specrun.speculation.plan import Plan
from specrun.speculation.planning import sequoia
from specrun.speculation.planning.costs import CostModel
from specrun.speculation.registry import COPIED_NODES, METHODS
from specrun.speculation.shape import MAX_LEAVES
from specrun.tuning.acceptance_meter import Acceptance
from specrun.tuning.replay import Prediction, predict

CHAIN_DEPTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
TREE_DEPTHS = (2, 3, 4, 6, 8, 12, 16)
ADAPTIVE_DEPTH = 16
_ALWAYS = ("off", "chain", "sequoia-match", "adaptive")  # the first three take no time
# Of a pass's committed tokens; a tree that takes longer than so many passes over one token can never pay.
MOST_TOKENS = 17


def candidates(costs: CostModel, largest: int, ctx: int, positional: Sequence[float]) -> list[Plan]:
    """Off, chains, trees of the measured sizes, Sequoia's tree, and an adaptive one: whatever could possibly pay.

    largest: nodes that a tree may have. ctx: context length at which costs are judged. positional: chance of the k-th
    candidate.
    """
    plans = [Plan.off()]
    if costs.draft is None:
        return plans
    plain = costs.plain_ms(ctx)
    plans += [Plan.chain(depth) for depth in CHAIN_DEPTHS if depth < largest and _may_pay(costs, depth + 1, depth, ctx)]
    for budget in costs.target.sizes:
        if 3 <= budget <= largest:
            plans += [
                Plan.tree(budget, depth)
                for depth in TREE_DEPTHS
                if depth < budget - 1 and budget <= 16 * depth and _may_pay(costs, budget, depth, ctx)
            ]
    static = sequoia.choose(positional, costs, ctx, largest, MAX_DEPTH, MAX_LEAVES).shape
    if static.n_nodes > 1:
        plans.append(METHODS["sequoia-match"].plan().shaped(static))
    affordable = [n for n in costs.target.sizes if n <= largest and costs.target.ms(n, ctx) < MOST_TOKENS * plain]
    if max(affordable) > 1:
        width = max(1, min(costs.draft.largest, 16))
        plans.append(Plan.adaptive(max(affordable), ADAPTIVE_DEPTH, width))
    return plans


def _may_pay(costs: CostModel, budget: int, depth: int, ctx: int) -> bool:
    """Whether it would pay if every drafted token of the longest path were accepted."""
    ms = costs.target.ms(budget, ctx) + depth * costs.level_ms(1, ctx) + costs.overhead.step
    return (depth + 1) / ms > 1 / costs.plain_ms(ctx)


def ranked(
    plans: Sequence[Plan],
    acceptance: Acceptance,
    costs: CostModel,
    over: Callable[[], bool],
) -> list[Prediction]:
    """Predictions, fastest first. `over` ends the replays of SpecExec's trees early, of which there are many."""
    first = [plan for plan in plans if plan.method in _ALWAYS]
    rest = [plan for plan in plans if plan.method not in _ALWAYS]
    found = []
    for i, plan in enumerate([*first, *rest]):
        if i >= len(first) and over():
            break
        prediction = predict(plan, acceptance.traces, costs, acceptance.calibration, acceptance.sharpness)
        if plan.method == "adaptive" and prediction.largest > 1:
            # Its bound is what the steps made use of, so that contexts are no larger and the name says something.
            bound = next(n for n in costs.target.sizes if n >= prediction.largest)
            prediction = replace(prediction, plan=Plan.adaptive(bound, plan.depth, plan.width))
        found.append(prediction)
    return sorted(found, key=lambda p: -p.tokens_per_second)


def neighbours(predictions: Sequence[Prediction], largest: int) -> list[Prediction]:
    """Those worth running: the best, off, the best of each method, the best smaller and larger tree.

    The adaptive tree is run with draft sources as well, which make it the faster the more a text copies, as calibration
    texts do not; and the likely plans once more with the draft working while the target does. Neither can be predicted.

    largest: nodes that a tree may have.
    """
    best = predictions[0]
    chosen = [best]
    for method in ("off", "chain", "specexec", "sequoia-match", "adaptive"):
        of_method = [p for p in predictions if p.plan.method == method]
        chosen += of_method[:1]
    trees = [p for p in predictions if p.plan.method == "specexec"]
    if trees:
        middle = trees[0].plan.budget
        chosen += [p for p in trees if p.plan.budget <= middle / 1.5][:1]
        chosen += [p for p in trees if p.plan.budget >= middle * 1.5][:1]
    with_sources = [merged(p, largest) for p in chosen if p.plan.method == "adaptive"]
    chosen += with_sources
    likely = [*[p for p in chosen if p.plan.depth and p.plan.method != "adaptive"][:1], *with_sources]
    chosen += [overlapped(p) for p in likely if METHODS[p.plan.method].can_overlap]
    return sorted(dict.fromkeys(chosen), key=lambda p: -p.tokens_per_second)


def merged(prediction: Prediction, largest: int) -> Prediction:
    """The adaptive plan with draft sources, of which as much is expected.

    Where text is copied a guess goes on for dozens of tokens that cost no draft pass, so the tree may be larger than
    the draft's alone ever was, and as deep as it is large (docs/benchmarks/sources.md).
    """
    budget = max(prediction.plan.budget, min(max(2 * prediction.plan.budget, COPIED_NODES), largest))
    plan = replace(prediction.plan, method="merged", budget=budget, depth=max(prediction.plan.depth, budget - 1))
    return replace(prediction, plan=plan)


def overlapped(prediction: Prediction) -> Prediction:
    """The same plan, drafted while the target's passes run, and as much expected of it."""
    return replace(prediction, plan=replace(prediction.plan, overlap=True))
