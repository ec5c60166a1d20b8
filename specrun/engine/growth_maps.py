"""Sequoia's tree shapes for plans that need one: by a profile's figures, or by a few passes over texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specrun.engine.calibration_texts import shipped
from specrun.engine.decoding import Engine
from specrun.engine.positional_meter import PositionalMeter
from specrun.engine.prompt_tokens import chat_template, single_turn_tokens
from specrun.engine.request import Request
from specrun.profiles.profile import Profile
from specrun.sampling import SamplingParameters
from specrun.speculation.controllers.chooser import FixedPlan
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.drafters.static import MAX_DEPTH
from specrun.speculation.method import Method
from specrun.speculation.plan import Plan
from specrun.speculation.planning import sequoia
from specrun.speculation.shape import MAX_LEAVES, TreeShape

_CTX = 64  # context length at which costs are judged
_TEXTS = 3  # calibration texts, each of another kind
_TOKENS = 40  # tokens written after each


def by_profile(plan: Plan, profile: Profile, temperature: float, is_open: bool) -> Plan:
    """The plan with a shape, if it needs one, from the profile's acceptance. is_open: choose its size by the profile;
    else its budget and depth are bounds.
    """
    method = plan.method
    if is_open and method.is_adaptive:
        tuned = profile.at(temperature)
        sizes = [p for p in (tuned.plan, tuned.other) if p and p.method.is_adaptive]
        return sizes[0].follows(plan.method) if sizes else plan
    if not method.wants_shape or plan.shape or not profile.acceptance or plan.depth == 0:
        return plan
    acceptance = _saved(profile, method, temperature)
    if is_open:
        costs = profile.costs
        chosen = sequoia.choose(acceptance, costs, _CTX, costs.target.largest, MAX_DEPTH, MAX_LEAVES)
        if chosen.shape.n_nodes > 1:
            return plan.shaped(chosen.shape)
    # Where no tree pays, the one that was asked for is of moderate size all the same.
    return plan.shaped(sequoia.best_shape(acceptance, plan.budget, plan.depth, MAX_LEAVES))


def _saved(profile: Profile, method: Method, temperature: float) -> list[float]:
    measured = profile.acceptance_at(temperature)
    return measured.sampled if method.samples else measured.positional


def with_acceptance(
    engine: Engine, profile: Profile | None, plan: Plan, temperature: float
) -> tuple[TreeShape, list[float]]:
    """The shape of a plan that needs one, within its bounds if it has none yet, and the acceptance it is made for.

    The vector is the profile's, or measured now.
    """
    if profile and profile.acceptance:
        acceptance = _saved(profile, plan.method, temperature)
    else:
        acceptance = _measured(engine, temperature)[plan.method.samples]
    leaves = engine.target.max_leaves
    return plan.shape or sequoia.best_shape(acceptance, plan.budget, plan.depth, leaves), acceptance


def filled(engine: Engine, profile: Profile | None, plans: Sequence[Plan], temperature: float) -> Iterator[Plan]:
    """The plans; those that need a shape and have none get one within their bounds: from the profile's acceptance, or
    from acceptance measured now.
    """
    measured: tuple[list[float], list[float]] | None = None
    for plan in plans:
        if not plan.method.wants_shape or plan.shape or not plan.drafts:
            yield plan
        elif profile:
            yield by_profile(plan, profile, temperature, is_open=False)
        else:
            measured = measured or _measured(engine, temperature)
            acceptance = measured[plan.method.samples]
            yield plan.shaped(sequoia.best_shape(acceptance, plan.budget, plan.depth, engine.target.max_leaves))


def _measured(engine: Engine, temperature: float) -> tuple[list[float], list[float]]:
    """Positional acceptance of sample and match, and of draws without replacement, along what the target writes after a
    few calibration prompts. The texts are short; `specrun tune` measures more of them.
    """
    sampling = SamplingParameters(temperature=temperature)
    meter = PositionalMeter(sampling)
    model = engine.target.context.model
    template = chat_template(model)
    write = FixedPlan(SPECEXEC.plan(min(16, engine.target.max_leaves), 8))
    for text in shipped("calibrate")[:_TEXTS]:
        prompt = single_turn_tokens(model, text.prompt, template)[: engine.ctx_size - _TOKENS - 1]
        engine.reset()
        for _ in engine.generate(Request(prompt, sampling, _TOKENS, ignore_eos=True), write):
            pass
        meter.add(engine, list(engine.target.tokens), skip=len(prompt) - 1)
    return meter.vectors()
