"""The stages of `specrun tune` on a loaded pair: cost tables, exactness, acceptance, predictions, validation."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from specrun.engine import calibration_texts as texts
from specrun.engine.default_settings import keeps_bits
from specrun.engine.model import Model
from specrun.engine.request import Request
from specrun.llama.invariance import depends_on_size, exact_sizes
from specrun.long_run import Run
from specrun.profiles.profile import Acceptance, TunedPlan
from specrun.sampling import SamplingParameters
from specrun.speculation.controllers.arm import ExpectedPlan
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF
from specrun.speculation.planning.costs import CostModel, CostTable, Overhead, most_waiting
from specrun.speculation.planning.pass_sizes import PLAIN_ONLY, PassSizes, is_free, may_be_free
from specrun.speculation.planning.plan_space import MOST_TOKENS
from specrun.tuning import choose
from specrun.tuning.acceptance_meter import TAIL, AcceptanceMeter, Prompt
from specrun.tuning.pass_timer import DraftTimer, PassTimer, TargetTimer, table
from specrun.tuning.replay import Prediction, TargetLimits
from specrun.tuning.trace import MeasuredAcceptance
from specrun.tuning.unfinished import UnfinishedRun
from specrun.tuning.validate import UNTIMED, Validated, passes_of, plain_rate, tuned_plan, validate

# Tokens of the passes that are timed, of the target and of the draft, and the context lengths.
_SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
_DRAFT_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_CONTEXTS = (64, 768)

# Shares of the effort's seconds after which each stage should be over.
_TARGET_TABLE, _DRAFT_TABLE, _ACCEPTANCE, _REPLAY = 0.22, 0.25, 0.62, 0.70
_LEAST_VALIDATED = (24, 2)  # tokens and texts that each plan should write
_MOST_RUN = (2, 5)  # fewest and most plans that are run besides plain decoding
_RECORDED = 128  # most nodes of a recorded tree: recordings of larger ones take time and memory for little
_MANY = 0.75  # share of the wanted positions below which the user is told
_LEAST_PROMPT = 8  # tokens that are left of a prompt, however small the context
_SLOW_MS = 200.0  # where a plain pass takes longer, only powers of two are timed at first
_FEW, _LEAST_TIMED = 16, 3  # tokens of passes that are timed in any case; rounds that there must be time for
_OVERHEAD_MS = 3000.0  # time of the passes in which specrun's own work is measured
_DRIFT = 0.1  # change of plain decoding's rate between cost tables and validation above which the user is told

EffortName = Literal["quick", "default", "thorough"]


@dataclass(frozen=True)
class Effort:
    """How much a run measures."""

    seconds: float  # about how long all stages after loading take together
    largest: int  # most nodes of a tree
    rounds: int  # rounds of the cost tables
    n_positions: int  # most positions recorded behind each calibration text
    n_tokens: int  # most tokens written behind each validation text


EFFORTS: dict[EffortName, Effort] = {
    "quick": Effort(40, 128, 3, 32, 48),
    "default": Effort(90, 256, 3, 64, 96),
    "thorough": Effort(1200, 512, 9, 192, 192),
}


@dataclass(frozen=True)
class Tuned:
    """What the stages measured and chose."""

    costs: CostModel  # without padding
    exact_sizes: PassSizes  # passes of these sizes give a token the same bits
    pads: bool  # whether every pass was padded to these sizes when plans were compared and run
    acceptance: list[Acceptance]  # one for each temperature; empty without a draft
    predictions: dict[float, list[Prediction]]  # by temperature, fastest first
    validated: list[Validated]
    plans: list[TunedPlan]  # one for each temperature
    notices: list[str]  # sentences about anything that disturbed the measurements


class Tuner:
    """Measures one loaded pair.

    unfinished: keeps the results of the stages; those that an earlier run has measured are taken from it.
    exact: pad every pass to sizes that give a token the same bits.
    """

    def __init__(
        self,
        model: Model,
        effort: Effort,
        temperatures: Sequence[float],
        unfinished: UnfinishedRun,
        run: Run,
        exact: bool = False,
    ) -> None:
        self._model = model
        self._target = model.engine.target
        self._effort = effort
        self._temperatures = temperatures
        self._unfinished = unfinished
        self._stages = unfinished.stages
        self._run = run
        self._exact = exact
        self._started = time.perf_counter()
        self._notices: list[str] = []
        self._tokens = [token for text in texts.shipped("calibrate") for token in model.prompt_tokens(text.prompt)]

    def measure(self, prompts: Sequence[Prompt] | None = None) -> Tuned:
        """Run all stages. prompts: the user's own; every third of them validates, and the others calibrate."""
        calibrate_on, validate_on = self._texts(prompts)
        once = self._unfinished.once
        target_table = once("target", self._target_table)
        self._target.wait_for(most_waiting(target_table))
        sizes = once("exact_sizes", lambda: self._exact_sizes(target_table))
        ctx = target_table.times[0].ctx
        pads = self._exact or is_free(sizes, {n: target_table.ms(n, ctx) for n in target_table.sizes})
        if pads:
            self._target.padding = sizes
        draft_table = once("draft", self._draft_table) if self._model.engine.draft else None
        costs = CostModel(target_table.padded(self._target.padding), draft_table)
        measured: list[MeasuredAcceptance] = []
        if costs.draft:
            measured, costs = self._measure_acceptance(costs, calibrate_on)
        acceptance = [one.acceptance for one in measured]
        predictions = self._predict(measured, costs)
        validated = self._validate(predictions, acceptance, costs, validate_on)
        plans = [self._choose(t, predictions[t], [v for v in validated if v.temperature == t]) for t in predictions]
        unpadded = replace(costs, target=target_table)
        return Tuned(unpadded, sizes, pads, acceptance, predictions, validated, plans, self._notices)

    def _target_table(self) -> CostTable:
        timer = TargetTimer(self._target, self._tokens)
        timer.fill(_CONTEXTS[0])
        largest = min(self._effort.largest, self._target.room())
        plain_ms = statistics.median(timer.ms(1) for _ in range(3))
        budget_ms = 1e3 * _TARGET_TABLE * self._effort.seconds
        # More sizes are added where the times are jagged.
        powers = [size for size in _SIZES if size & (size - 1) == 0]
        wanted = powers if plain_ms > _SLOW_MS else list(_SIZES)
        sizes, total_ms = [1], plain_ms
        for size in (size for size in wanted[1:] if size <= largest):
            # A larger pass could not commit enough tokens to make up for its time.
            ms = timer.ms(size) if size > 8 else plain_ms
            if ms > MOST_TOKENS * plain_ms:
                break
            if size > _FEW and _LEAST_TIMED * (total_ms + ms) > budget_ms and wanted == powers:
                self._notices.append(
                    f"passes over more than {sizes[-1]} tokens were not timed, because they take long; "
                    "`specrun tune --thorough` takes more time"
                )
                break
            total_ms += ms
            sizes.append(size)
        if _LEAST_TIMED * total_ms > budget_ms:
            sizes = [size for size in sizes if size in powers]
        return self._table("target", timer, sizes, plain_ms * sum(sizes) / 8, _TARGET_TABLE)

    def _draft_table(self) -> CostTable:
        timer = DraftTimer(self._model.engine, self._tokens)
        timer.fill(_CONTEXTS[0])
        return self._table("draft", timer, _DRAFT_SIZES, timer.ms(1) * 20, _DRAFT_TABLE)

    def _table(self, name: str, timer: PassTimer, sizes: Sequence[int], round_ms: float, share: float) -> CostTable:
        # Short passes are timed more often: their times scatter more.
        n_rounds = self._effort.rounds if round_ms > 1000 else 3 * self._effort.rounds
        contexts = [ctx for ctx in _CONTEXTS if ctx + max(sizes) <= self._model.engine.ctx_size] or [_CONTEXTS[0]]
        cost_table, n_disturbed = table(timer, sizes, contexts, n_rounds, self._stage(share).labelled(name))
        if n_disturbed > n_rounds:
            self._notices.append(
                f"the times of the {name} drifted ({n_disturbed} rounds were measured again): "
                "something else used this machine, or it grew hot; tune again when it is quiet"
            )
        return cost_table

    def _exact_sizes(self, costs: CostTable) -> PassSizes:
        self._run.show("in passes of which sizes are logits the same bits?")
        # The whole comparison takes long: it is for types that keep bits at no cost, and for users who ask for them.
        quick = not (self._exact or keeps_bits(self._target.context.model.path))
        ctx = costs.times[0].ctx
        is_dear = not may_be_free({n: costs.ms(n, ctx) for n in costs.sizes})
        if quick and is_dear and depends_on_size(self._target, self._tokens):
            return PLAIN_ONLY
        sizes, _ = exact_sizes(self._target, self._tokens, costs.largest, quick)
        # Passes of sizes that were not timed take too long for any plan.
        return sizes if any(n in sizes for n in costs.sizes) else PLAIN_ONLY

    def _measure_acceptance(
        self, costs: CostModel, prompts: Sequence[Prompt]
    ) -> tuple[list[MeasuredAcceptance], CostModel]:
        """The acceptance at every temperature, and the costs with specrun's own overhead."""
        if not self._stages.acceptance:
            plain_ms = costs.target.ms(1, 64)
            largest = max(n for n in costs.target.sizes if costs.target.ms(n, 64) < MOST_TOKENS * plain_ms)
            budget = max(min(largest, _RECORDED), 2)
            meter = AcceptanceMeter(self._model.engine, costs, budget, max(2, min(16, budget // 4)))
            stage = self._stage(_ACCEPTANCE)
            self._stages.acceptance = meter.measure(prompts, self._temperatures, self._effort.n_positions, stage)
            level, node = meter.draft_overhead()
            self._stages.overhead = Overhead(self._pass_overhead(prompts[0][1], plain_ms), level, node)
            self._unfinished.save()
        assert self._stages.overhead
        for one in self._stages.acceptance:
            n, wanted = one.acceptance.n_positions, self._effort.n_positions * len(one.traces)
            if n < _MANY * wanted:
                self._notices.append(
                    f"recorded {n} of {wanted} positions at temperature {one.acceptance.temperature:g}, because "
                    "passes take long; `specrun tune --thorough` takes more time"
                )
        return self._stages.acceptance, replace(costs, overhead=self._stages.overhead)

    def _pass_overhead(self, prompt: list[int], plain_ms: float) -> float:
        """Milliseconds of specrun's own time in the median pass over a small tree."""
        n_tokens = UNTIMED + max(min(int(_OVERHEAD_MS / plain_ms), 64), 4)
        request = Request(prompt, SamplingParameters(temperature=self._temperatures[0]), n_tokens, ignore_eos=True)
        self._model.engine.reset()
        passes = passes_of(self._model.engine, SPECEXEC.plan(4, 2), request)
        return 1e3 * statistics.median(one.seconds - one.target_seconds - one.draft_seconds for one in passes)

    def _predict(self, measured: Sequence[MeasuredAcceptance], costs: CostModel) -> dict[float, list[Prediction]]:
        ctx = _CONTEXTS[0]
        if not measured:
            return {self._temperatures[0]: [Prediction(OFF.plan(), 1e3 / costs.plain_ms(ctx), 1.0)]}
        predictions, limits = {}, TargetLimits.of(self._target)
        for i, one in enumerate(measured):
            temperature = one.acceptance.temperature
            self._run.show(f"choosing among plans at temperature {temperature:g}")
            share = _ACCEPTANCE + (_REPLAY - _ACCEPTANCE) * (i + 1) / len(measured)
            plans = choose.candidates(costs, costs.target.largest, ctx, one.acceptance.positional, limits)
            predictions[temperature] = choose.ranked(plans, one, costs, self._stage(share), limits)
        return predictions

    def _validate(
        self,
        predictions: dict[float, list[Prediction]],
        acceptance: Sequence[Acceptance],
        costs: CostModel,
        prompts: Sequence[list[int]],
    ) -> list[Validated]:
        results: list[Validated] = []
        for i, measured in enumerate(acceptance):
            ranked = predictions[measured.temperature]
            stage = self._stage(_REPLAY + (1 - _REPLAY) * (i + 1) / len(acceptance))
            seconds = max(stage.deadline - time.perf_counter(), 0.0)
            (least, n_texts), (fewest, most) = _LEAST_VALIDATED, _MOST_RUN
            seconds_each = n_texts * (least / ranked[0].tokens_per_second + (UNTIMED + 1) * costs.plain_ms(0) / 1e3)
            n_plans = min(max(int(seconds / seconds_each), fewest), most)
            chosen = choose.worth_running(ranked, costs.target.largest, n_plans)
            if self._model.engine.overlap is None:
                chosen = [one for one in chosen if not one.plan.overlap]
            n_tokens = int(least * seconds / (seconds_each * len(chosen)))
            n_tokens = min(max(n_tokens, least), self._effort.n_tokens)
            results += validate(self._model, chosen, prompts, measured, n_tokens, costs, stage)
        return results

    def _choose(self, temperature: float, predictions: list[Prediction], results: list[Validated]) -> TunedPlan:
        """The fastest plan by what was measured; without a draft, nothing was run and plain decoding is the plan."""
        if not results:
            plain = next(p for p in predictions if not p.plan.drafts)
            rate = plain.tokens_per_second
            expected = [ExpectedPlan(plain.plan, rate, rate * choose.TABLES_ERROR)]
            return TunedPlan(temperature, plain.plan, rate, 1.0, rate, expected)
        off = next(result for result in results if not result.plan.drafts)
        change = off.table_seconds / off.plain_seconds - 1 if off.plain_seconds else 0.0
        if abs(change) > _DRIFT:
            self._notices.append(
                f"plain decoding was {abs(change):.0%} {'faster' if change > 0 else 'slower'} when plans were run than "
                f"by the tables (temperature {temperature:g}): the speed of this machine varies"
            )
        return tuned_plan(temperature, results, plain_rate(off))

    def _stage(self, share: float) -> Run:
        """A stage that should be over after this share of the effort's time."""
        return self._run.stage(max(self._started + share * self._effort.seconds - time.perf_counter(), 0.0))

    def _texts(self, prompts: Sequence[Prompt] | None) -> tuple[list[Prompt], list[list[int]]]:
        """The prompts to calibrate on and those to validate on, cut off so that what is written fits the context."""
        n_new = max(self._effort.n_positions + TAIL, UNTIMED + self._effort.n_tokens)
        room = max(self._model.engine.ctx_size - n_new - 1, _LEAST_PROMPT)
        if prompts:
            cut = [(kind, tokens[:room]) for kind, tokens in prompts]
            held_out = [tokens for _, tokens in cut[2::3]] or [tokens for _, tokens in cut]
            return [prompt for i, prompt in enumerate(cut) if i % 3 != 2], held_out
        tokens_of = self._model.prompt_tokens
        calibrate_on = [(text.kind, tokens_of(text.prompt)[:room]) for text in texts.shipped("calibrate")]
        return calibrate_on, [tokens_of(text.prompt)[:room] for text in texts.shipped("validate")]
