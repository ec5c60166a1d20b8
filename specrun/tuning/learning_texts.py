"""Texts that `specrun tune` writes with the adaptive tree, to learn how often the draft is right."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from specrun import clock
from specrun.decoding.generation import Generation, Request
from specrun.decoding.passes import write_alone
from specrun.loading.model import Model
from specrun.long_run import Run
from specrun.profiles.profile import Acceptance, TunedPlan
from specrun.sampling import SamplingParameters
from specrun.speculation.controllers.arm import ExpectedPlan
from specrun.speculation.controllers.chooser import FixedPlan
from specrun.speculation.method import OFF, Plan
from specrun.speculation.planning.costs import CostTable
from specrun.speculation.planning.guide import Guide, PassRecord, RunCosts

Prompt = tuple[str, list[int]]  # the kind of text, and token ids

COPIED = "edit"  # the kind of text that repeats most of its prompt

_LEAST_PASSES = 3  # of a text, however long they take
_UNTIMED = 1  # passes of a text in which caches still hold what was there before
_LEAST_ERROR = 0.03  # relative error of a rate at least: the machine's speed varies by about as much
# Standard deviation of the logarithm of the rate from text to text before any was written, and texts that this counts
# as; and how many standard deviations from the mean nine of ten texts are at most, by the normal distribution.
_SPREAD, _SPREAD_TEXTS, _NINE_OF_TEN = 0.2, 4, 1.65
# Texts that begin with what these have taught are so many times as fast: 1.2 to 1.5 (docs/benchmarks/tune.md).
_TAUGHT = 1.2


@dataclass(frozen=True)
class Learned:
    """What the texts showed."""

    plans: list[TunedPlan]  # one for each temperature
    acceptance: list[Acceptance] = field(default_factory=list)  # the same; empty without a draft
    draft: CostTable | None = None  # what draft passes take with our own work in them; None without a draft


@dataclass(frozen=True)
class _Text:
    """A text that was written.

    n_timed, n_passes: tokens and passes that tell its speed. ratio: its rate, as a multiple of plain decoding's.
    """

    kind: str
    n_timed: int
    n_passes: int
    ratio: float


def learn(
    model: Model,
    plan: Plan,
    costs: RunCosts,
    temperatures: Sequence[float],
    prompts: Sequence[Prompt],
    n_tokens: int,
    run: Run,
) -> Learned:
    """Write a text at each temperature after each of the prompts, with the chances and times that every run of `auto`
    learns, too. Here the adaptive plan is never left, as its rate is what is asked.

    A prompt is read once for all temperatures, because reading may take longer than writing.

    plan: the adaptive one, with the bounds that trees may have. costs: what is known, which the passes correct.
    n_tokens: of each text, at most; it ends earlier, after a few passes, where the run's deadline needs that.
    """
    n_prompt = len(prompts[0][1])
    plain_ms = costs.target.ms(1, n_prompt)
    off = ExpectedPlan(OFF.plan(), 1e3 / plain_ms, _LEAST_ERROR * 1e3 / plain_ms)
    if model.engine.draft is None:
        return Learned([TunedPlan(t, off.plan, 1e3 / plain_ms, 1.0, 1e3 / plain_ms, [off]) for t in temperatures])
    guide = Guide(costs)
    guide.expect(max(guide.chain_rate(guide.calibration.agreement, n_prompt), 1.0) / plain_ms)
    guides = dict.fromkeys(temperatures, guide)
    texts: dict[float, list[_Text]] = {t: [] for t in temperatures}
    n_left = len(prompts) * len(temperatures)
    for i, (kind, prompt) in enumerate(prompts):
        for t in temperatures:
            # Draft sources would copy the text at the temperature before; the prompt is read once for all.
            model.forget(keep_caches=t != temperatures[0])
            run.show(f"writing at temperature {t:g}: {kind}, text {i + 1} of {len(prompts)}")
            stage = run.stage((run.deadline - clock.now()) / n_left)
            n_left -= 1
            # What the texts before have taught is where this one begins, as a run after `specrun tune` does.
            guides[t] = Guide(costs, guides[t].calibration.with_run(), guides[t].rate)
            texts[t].append(_write(model, FixedPlan(plan, guides[t]), prompt, t, i, n_tokens, stage, kind))
    acceptance = [Acceptance(t, guides[t].calibration.with_run()) for t in temperatures]
    return Learned([_tuned(texts[t], t, plan, off) for t in temperatures], acceptance, costs.draft.table(plain_ms))


def _tuned(texts: Sequence[_Text], temperature: float, plan: Plan, off: ExpectedPlan) -> TunedPlan:
    """The better of the adaptive plan and plain decoding, by the texts that do not copy, and what to expect."""
    plain = off.tokens_per_second
    usual = [text for text in texts if text.kind != COPIED] or texts
    logs = [math.log(text.ratio) for text in usual]
    ratio, n = math.exp(statistics.mean(logs)), len(logs)
    error = ratio * max(_LEAST_ERROR, statistics.stdev(logs) / math.sqrt(n) if n > 1 else 0.3)
    drafting = ExpectedPlan(plan, ratio * plain, error * plain)
    # Where nothing pays the adaptive tree drafts nothing, and is as fast as plain decoding but for noise.
    best = drafting if ratio > 1 + _LEAST_ERROR else off
    per_pass = sum(text.n_timed for text in usual) / sum(text.n_passes for text in usual)
    kinds = dict.fromkeys(text.kind for text in texts)
    return TunedPlan(
        temperature,
        best.plan,
        best.tokens_per_second,
        per_pass if best is drafting else 1.0,
        plain,
        sorted([drafting, off], key=lambda one: -one.tokens_per_second),
        _range(logs),
        {kind: statistics.geometric_mean(text.ratio for text in texts if text.kind == kind) for kind in kinds},
    )


def _range(logs: Sequence[float]) -> tuple[float, float]:
    """The range of `auto`'s ratios in which nine of ten other texts are expected, by the logarithms of those of the
    adaptive plan, which `auto` leaves where it loses.
    """
    kept = [max(log, 0.0) + math.log(_TAUGHT) for log in logs]
    mean, n = statistics.mean(kept), len(kept)
    squares = _SPREAD_TEXTS * _SPREAD**2 + sum((log - mean) ** 2 for log in kept)
    most = _NINE_OF_TEN * math.sqrt(squares / (_SPREAD_TEXTS + n - 1) * (1 + 1 / n))
    return math.exp(mean - most), math.exp(mean + most)


def _write(
    model: Model, plans: FixedPlan, prompt: list[int], temperature: float, seed: int, n_tokens: int, run: Run, kind: str
) -> _Text:
    request = Request(prompt, SamplingParameters(temperature=temperature, seed=seed), n_tokens, ignore_eos=True)
    records = list[PassRecord]()
    for record in write_alone(Generation(model.engine, request, plans)):
        records.append(record)
        if len(records) >= _LEAST_PASSES and run.is_over():
            break
    assert plans.guide
    timed = records[_UNTIMED:] or records
    n_timed = sum(one.n_tokens for one in timed)
    plainly = n_timed * statistics.mean(plans.guide.plain_ms(one.ctx) for one in timed) / 1e3
    return _Text(kind, n_timed, len(timed), plainly / sum(one.seconds for one in timed))
