"""Sequoia's tree shapes for plans that need one: by a profile's figures, or by a few passes over texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from specrun.engine.calibration_texts import shipped
from specrun.engine.positional_meter import PositionalMeter
from specrun.engine.prompt_tokens import chat_template, single_turn_tokens
from specrun.sampling import SamplingParameters
from specrun.speculation import FixedPlan
from specrun.speculation.method import PROFILE, Method
from specrun.speculation.plan import Plan
from specrun.speculation.planning import sequoia
from specrun.speculation.registry import METHODS
from specrun.speculation.shape import MAX_LEAVES, TreeShape

if TYPE_CHECKING:
    from specrun.engine.loading import Runtime
    from specrun.profiles.profile import Profile

MAX_DEPTH = 24
_CTX = 64  # at which costs are judged
_TEXTS = 3  # of as many kinds
_TOKENS = 40  # written behind each


def by_profile(plan: Plan, profile: Profile, temperature: float, is_open: bool) -> Plan:
    """The plan with a shape, if it needs one, from the profile's acceptance. is_open: choose its size by the profile;
    else its budget and depth are bounds.
    """
    method = METHODS[plan.method]
    if is_open and PROFILE in method.needs:
        tuned = profile.at(temperature)
        sizes = [p for p in (tuned.plan, tuned.other) if p and PROFILE in METHODS[p.method].needs]
        return replace(sizes[0], method=plan.method, overlap=False) if sizes else plan
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


def with_acceptance(runtime: Runtime, plan: Plan, temperature: float) -> tuple[TreeShape, list[float]]:
    """The shape of a plan that needs one, within its bounds if it has none yet, and the vector that it is made from.

    The vector is the profile's, or measured now.
    """
    method = METHODS[plan.method]
    if runtime.profile and runtime.profile.acceptance:
        acceptance = _saved(runtime.profile, method, temperature)
    else:
        match, sampled = vectors(runtime, temperature)
        acceptance = sampled if method.samples else match
    leaves = runtime.engine.target.max_leaves
    return plan.shape or sequoia.best_shape(acceptance, plan.budget, plan.depth, leaves), acceptance


def filled(runtime: Runtime, plans: Sequence[Plan], temperature: float) -> Iterator[Plan]:
    """The plans, those that need a shape and have none with one within their bounds: from the profile of this pair, or
    from teacher-forced passes over texts.
    """
    found: tuple[list[float], list[float]] | None = None
    for plan in plans:
        method = METHODS[plan.method]
        if not method.wants_shape or plan.shape or plan.depth == 0:
            yield plan
            continue
        if runtime.profile:
            yield by_profile(plan, runtime.profile, temperature, is_open=False)
            continue
        found = found or vectors(runtime, temperature)
        acceptance = found[1] if method.samples else found[0]
        shape = sequoia.best_shape(acceptance, plan.budget, plan.depth, runtime.engine.target.max_leaves)
        yield plan.shaped(shape)


def vectors(runtime: Runtime, temperature: float) -> tuple[list[float], list[float]]:
    """Positional acceptance with sample and match, and of draws without replacement, along what the target writes
    behind a few of the prompts for calibrating. The texts are short: `specrun tune` takes more time.
    """
    engine = runtime.engine
    sampling = SamplingParameters(temperature=temperature)
    meter = PositionalMeter(sampling)
    template = chat_template(runtime.model)
    write = FixedPlan(Plan.tree(min(16, engine.target.max_leaves), 8))
    for text in shipped("calibrate")[:_TEXTS]:
        prompt = single_turn_tokens(runtime.model, text.prompt, template)[: runtime.ctx_size - _TOKENS - 1]
        engine.reset()
        for _ in engine.generate(prompt, sampling, write, _TOKENS, ignore_eos=True):
            pass
        meter.add(engine, list(engine.target.tokens), skip=len(prompt) - 1)
    return meter.vectors()
