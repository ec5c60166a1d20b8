"""Tree shapes for Sequoia's methods, computed from a profile or from acceptance measured over a few short texts."""

from __future__ import annotations

from collections.abc import Sequence

from specrun.engine.calibration_texts import shipped
from specrun.engine.engine import Engine
from specrun.engine.generation import Generation
from specrun.engine.passes import write_alone
from specrun.engine.positional_meter import PositionalMeter
from specrun.engine.request import Request, chat_template, single_turn_tokens
from specrun.profiles.profile import Profile
from specrun.sampling import SamplingParameters
from specrun.speculation.controllers.chooser import FixedPlan
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.drafters.static import MAX_DEPTH
from specrun.speculation.method import Plan
from specrun.speculation.planning import sequoia
from specrun.speculation.shape import MAX_LEAVES, TreeShape

# All chosen by hand.
_CTX = 64  # context length in tokens at which costs are compared
_TEXTS = 3  # calibration texts that are written, each of another kind
_TOKENS = 40  # tokens written for each text

# Positional acceptance of methods that sample and match, and of draws without replacement; see `PositionalMeter`.
Vectors = tuple[list[float], list[float]]


def by_profile(plan: Plan, profile: Profile, temperature: float, is_open: bool) -> Plan:
    """The plan with the size or tree shape that the profile gives it; plans of other methods stay as they are.

    is_open: whether the profile also chooses budget and depth; if not, the plan's own are the bounds of its shape.
    """
    method = plan.method
    if is_open and method.is_adaptive:
        tuned = profile.at(temperature)
        run = (tuned.plan, *(expected.plan for expected in tuned.expected))
        return next((followed.follows(plan.method) for followed in run if followed.method.is_adaptive), plan)
    if not _lacks_shape(plan) or not profile.acceptance:
        return plan
    acceptance = _saved(profile, temperature)[method.samples]
    if is_open:
        costs = profile.padded_costs
        chosen = sequoia.choose(acceptance, costs, _CTX, costs.target.largest, MAX_DEPTH, MAX_LEAVES)
        if chosen.shape.n_nodes > 1:
            return plan.shaped(chosen.shape)
    # Where no tree pays, a user who asks for this method still gets a tree within the plan's bounds.
    return plan.shaped(sequoia.best_shape(acceptance, plan.budget, plan.depth, MAX_LEAVES))


def with_acceptance(
    engine: Engine, profile: Profile | None, plan: Plan, temperature: float
) -> tuple[TreeShape, list[float]]:
    """The shape of a plan of Sequoia's methods, or else the best within its bounds, and its acceptance vector, which is
    the profile's or measured now.
    """
    acceptance = _acceptance(engine, profile, temperature)[plan.method.samples]
    return plan.shape or _best(plan, acceptance, engine), acceptance


def shaped(engine: Engine, profile: Profile | None, plans: Sequence[Plan], temperature: float) -> list[Plan]:
    """The plans, with a shape as from `with_acceptance` for each of Sequoia's methods that lacked it."""
    if not any(map(_lacks_shape, plans)):
        return list(plans)
    vectors = _acceptance(engine, profile, temperature)
    return [
        plan.shaped(_best(plan, vectors[plan.method.samples], engine)) if _lacks_shape(plan) else plan for plan in plans
    ]


def _lacks_shape(plan: Plan) -> bool:
    return plan.method.wants_shape and plan.shape is None and plan.drafts


def _best(plan: Plan, acceptance: Sequence[float], engine: Engine) -> TreeShape:
    return sequoia.best_shape(acceptance, plan.budget, plan.depth, engine.target.max_leaves)


def _saved(profile: Profile, temperature: float) -> Vectors:
    measured = profile.acceptance_at(temperature)
    return measured.positional, measured.sampled


def _acceptance(engine: Engine, profile: Profile | None, temperature: float) -> Vectors:
    """Positional acceptance from the profile, or measured along short texts that the target writes now."""
    if profile and profile.acceptance:
        return _saved(profile, temperature)
    sampling = SamplingParameters(temperature=temperature)
    meter = PositionalMeter(sampling)
    model = engine.target.context.model
    template = chat_template(model)
    write = FixedPlan(SPECEXEC.plan(min(16, engine.target.max_leaves), 8))
    for text in shipped("calibrate")[:_TEXTS]:
        prompt = single_turn_tokens(model, text.prompt, template)[: engine.ctx_size - _TOKENS - 1]
        engine.reset()
        for _ in write_alone(Generation(engine, Request(prompt, sampling, _TOKENS, ignore_eos=True), write)):
            pass
        meter.add(engine, list(engine.target.tokens), skip=len(prompt) - 1)
    return meter.vectors()
