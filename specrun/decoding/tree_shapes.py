"""Tree shapes for Sequoia's methods, computed from a profile or from acceptance measured over a few short texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from specrun.decoding.calibration_texts import shipped
from specrun.decoding.engine import Engine
from specrun.decoding.generation import Generation, Request
from specrun.decoding.passes import write_alone
from specrun.decoding.prompts import chat_template, single_turn_tokens
from specrun.llama.draft_tokens import rows_along
from specrun.profiles.profile import Profile
from specrun.sampling import Distribution, Sampler, SamplingParameters
from specrun.speculation.controllers.chooser import FixedPlan
from specrun.speculation.drafters import sequoia
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import Plan
from specrun.speculation.planning.calibration import MAX_RANK
from specrun.speculation.tree import MAX_LEAVES

_CTX = 64  # context length in tokens at which costs are compared: about that of the shortest texts in tables
# Calibration texts that are written, each of another kind, and tokens of each: an acceptance of 0.7 then has a standard
# error of 0.04.
_TEXTS, _TOKENS = 3, 40
_NOISE_DRAWS = 32  # of the shared noise at each position: they add a thirty-second to the variance of one


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
    vector = profile.acceptance_at(temperature).calibration.by_rank
    if is_open:
        costs = profile.costs
        shape = sequoia.choose(vector, costs, _CTX, costs.target.largest, sequoia.MAX_DEPTH)
        if shape.n_nodes > 1:
            return plan.shaped(shape)
    # Where no tree pays, a user who asks for this method still gets a tree within the plan's bounds.
    return plan.shaped(sequoia.best_shape(vector, plan.budget, plan.depth, MAX_LEAVES))


def shaped(engine: Engine, profile: Profile | None, plans: Sequence[Plan], temperature: float) -> list[Plan]:
    """The plans; each of Sequoia's methods that lacks a shape gets the best within its bounds, for the acceptance of
    the profile or of short texts that the target writes now.
    """
    if not any(map(_lacks_shape, plans)):
        return list(plans)
    if profile and profile.acceptance:
        vector = profile.acceptance_at(temperature).calibration.by_rank
    else:
        vector = _measured(engine, temperature)
    leaves = engine.target.max_leaves
    return [
        plan.shaped(sequoia.best_shape(vector, plan.budget, plan.depth, leaves)) if _lacks_shape(plan) else plan
        for plan in plans
    ]


def _lacks_shape(plan: Plan) -> bool:
    return plan.method.wants_shape and plan.shape is None and plan.drafts


def _measured(engine: Engine, temperature: float) -> list[float]:
    """Positional acceptance, measured along short texts that the target writes."""
    sampling = SamplingParameters(temperature=temperature)
    meter = PositionalMeter(engine, sampling)
    model = engine.target.context.model
    template = chat_template(model)
    write = FixedPlan(SPECEXEC.plan(min(16, engine.target.max_leaves), 8))
    for text in shipped("calibrate")[:_TEXTS]:
        prompt = single_turn_tokens(model, text.prompt, template)[: engine.ctx_size - _TOKENS - 1]
        engine.reset()
        for _ in write_alone(Generation(engine, Request(prompt, sampling, _TOKENS, ignore_eos=True), write)):
            pass
        meter.add(list(engine.target.tokens), skip=len(prompt) - 1)
    return meter.vector()


class PositionalMeter:
    """Acceptance by the rank of a child, over all positions of all texts at one temperature, measured teacher-forced:
    passes of draft and, unless known, target over each text.
    """

    def __init__(self, engine: Engine, sampling: SamplingParameters) -> None:
        assert engine.draft is not None, "only pairs are measured"
        self.n_positions = 0  # measured so far
        self._engine = engine
        self._draft = engine.draft
        self._sampler = Sampler(sampling, engine.target.n_vocab)
        self._sums = np.zeros(MAX_RANK)
        self._rng = np.random.default_rng(0)

    def add(self, tokens: Sequence[int], skip: int = 0, known: Iterable[Distribution] | None = None) -> None:
        """Measure one text except its first `skip` tokens. The engine's caches are empty afterwards.

        known: the target's distributions after each of the other tokens.
        """
        if known is None:
            self._engine.reset()
            rows = rows_along(self._engine.target.context, tokens, skip)
            # All of them first: an assistant needs the target's cache for itself.
            known = [self._sampler.distribution(row, ()) for row in rows]
            self._engine.reset()
        self._engine.read_for_draft(tokens)
        for p, draft_row in zip(known, self._draft.rows_along(tokens, skip), strict=False):
            self.n_positions += 1
            if self._sampler.parameters.temperature == 0:
                self._sums += sequoia.greedy_vector(int(p.tokens[0]), draft_row)
            else:
                q = self._sampler.distribution(draft_row, ())
                self._sums += sequoia.shared_noise_vector(p, q, self._rng, _NOISE_DRAWS)
        self._engine.reset()

    def vector(self) -> list[float]:
        """p_k for each k: the chance that sample and match accepts the k-th child, rounded to 4 digits."""
        return [round(float(p), 4) for p in self._sums / max(self.n_positions, 1)]
