"""Texts that `specrun tune` writes with the adaptive tree, to learn how often the draft is right."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from specrun import clock
from specrun.decoding.generation import Generation
from specrun.decoding.passes import write_alone
from specrun.decoding.request import Request
from specrun.decoding.tree_shapes import PositionalMeter
from specrun.loading.model import Model
from specrun.long_run import Run
from specrun.profiles.profile import Acceptance, TunedPlan
from specrun.sampling import SamplingParameters
from specrun.speculation.controllers.arm import ExpectedPlan
from specrun.speculation.controllers.chooser import FixedPlan
from specrun.speculation.method import OFF, Plan
from specrun.speculation.planning.calibration import Calibration
from specrun.speculation.planning.costs import CostTable
from specrun.speculation.planning.guide import Guide, PassRecord, RunCosts

Prompt = tuple[str, list[int]]  # the kind of text, and token ids

# All chosen by hand.
_LEAST_PASSES = 3  # of a text, however long they take
_UNTIMED = 1  # passes of a text in which caches still hold what was there before
_USUAL_CHANCE = 0.7  # that a drafted token is right, before any was seen
_LEAST_ERROR = 0.03  # relative error of a rate at least: the machine's speed varies by about as much


@dataclass(frozen=True)
class Learned:
    """What the texts at one temperature showed.

    written: tokens that the target wrote. acceptance, draft: what is accepted, and what draft passes take with our own
    work in them; None without a draft.
    """

    plan: TunedPlan
    acceptance: Acceptance | None = None
    draft: CostTable | None = None
    written: tuple[int, ...] = ()


def learn(
    model: Model, plan: Plan, costs: RunCosts, temperature: float, prompts: Sequence[Prompt], n_tokens: int, run: Run
) -> Learned:
    """Write a text after each of the prompts, by the very learning that every run of `auto` does.

    plan: the adaptive one, with the bounds that trees may have. costs: what is known, which the passes correct.
    n_tokens: of each text, at most; it ends earlier, after a few passes, where the run's deadline needs that.
    """
    plain_ms = costs.target.ms(1, len(prompts[0][1]))
    plain = 1e3 / plain_ms
    off = ExpectedPlan(OFF.plan(), plain, _LEAST_ERROR * plain)
    if model.engine.draft is None:
        return Learned(TunedPlan(temperature, OFF.plan(), plain, 1.0, plain, [off]))
    guide = Guide(costs, Calibration())
    guide.expect(max(guide.chain_rate(_USUAL_CHANCE, len(prompts[0][1])), 1.0) / plain_ms)
    meter = PositionalMeter(model.engine, SamplingParameters(temperature=temperature))
    n_passes, n_timed, ratios, tokens = 0, 0, list[float](), list[int]()
    for i, (kind, prompt) in enumerate(prompts):
        run.show(f"writing at temperature {temperature:g}: {kind}, text {i + 1} of {len(prompts)}")
        stage = run.stage((run.deadline - clock.now()) / (len(prompts) - i))
        records = _write(model, FixedPlan(plan, guide), prompt, temperature, i, n_tokens, stage)
        timed = records[_UNTIMED:] or records
        n_own = sum(one.n_tokens for one in timed)
        n_passes, n_timed = n_passes + len(timed), n_timed + n_own
        plainly = n_own * statistics.mean(guide.plain_ms(one.ctx) for one in timed) / 1e3
        ratios.append(math.log(plainly / sum(one.seconds for one in timed)))
        written = [token for one in records for token in one.accepted.tokens]
        tokens += written
        if i == 0:
            meter.add([*prompt, *written], len(prompt) - 1)
    ratio = math.exp(statistics.mean(ratios))
    error = ratio * max(_LEAST_ERROR, statistics.stdev(ratios) / math.sqrt(len(ratios)) if len(ratios) > 1 else 0.3)
    drafting = ExpectedPlan(plan, ratio * plain, error * plain)
    expected = sorted([drafting, off], key=lambda one: -one.tokens_per_second)
    calibration = guide.calibration.with_run()
    # Where nothing pays the adaptive tree drafts nothing, and is as fast as plain decoding but for noise.
    best, n_tokens_per_pass = (drafting, n_timed / n_passes) if ratio > 1 + _LEAST_ERROR else (off, 1.0)
    tuned = TunedPlan(temperature, best.plan, best.tokens_per_second, n_tokens_per_pass, plain, expected)
    acceptance = Acceptance(temperature, calibration, meter.vector(), calibration.n_counted)
    return Learned(tuned, acceptance, costs.draft.table(plain_ms), tuple(tokens))


def _write(
    model: Model, plans: FixedPlan, prompt: list[int], temperature: float, seed: int, n_tokens: int, run: Run
) -> list[PassRecord]:
    model.forget()
    request = Request(prompt, SamplingParameters(temperature=temperature, seed=seed), n_tokens, ignore_eos=True)
    records = list[PassRecord]()
    for record in write_alone(Generation(model.engine, request, plans)):
        records.append(record)
        if len(records) >= _LEAST_PASSES and run.is_over():
            break
    return records
