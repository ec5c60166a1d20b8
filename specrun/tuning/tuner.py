"""The stages of `specrun tune` on a loaded pair: cost tables, exactness, acceptance, predictions, validation."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from specrun.engine import calibration_texts as texts
from specrun.engine.model import Model
from specrun.llama.invariance import exact_sizes
from specrun.long_run import Run
from specrun.profiles.acceptance import Acceptance
from specrun.profiles.profile import TunedPlan
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF
from specrun.speculation.planning.costs import CostModel, CostTable
from specrun.speculation.planning.pass_sizes import PassSizes, is_free
from specrun.speculation.planning.plan_space import MOST_TOKENS
from specrun.tuning import choose
from specrun.tuning.acceptance_meter import TAIL, AcceptanceMeter, Prompt
from specrun.tuning.effort import Effort
from specrun.tuning.pass_timer import DraftTimer, TargetTimer, table
from specrun.tuning.replay import Prediction
from specrun.tuning.trace import MeasuredAcceptance
from specrun.tuning.unfinished import UnfinishedRun
from specrun.tuning.validate import Validated, fastest, validate

# Tokens of the passes that are timed, of the target and of the draft, and the context lengths.
_SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
_DRAFT_SIZES = (1, 2, 3, 4, 6, 8, 12, 16)
_CONTEXTS = (64, 768)

# Shares of the effort's seconds after which each stage should be over.
_TARGET_TABLE, _DRAFT_TABLE, _EXACTNESS, _ACCEPTANCE, _REPLAY = 0.25, 0.28, 0.35, 0.68, 0.75
_MIN_REPLAY_SECONDS = 6.0
_MIN_VALIDATED_TOKENS = 16  # tokens behind each prompt
_DRIFT = 0.1  # change of plain decoding's rate between cost tables and validation above which the user is told


@dataclass(frozen=True)
class Tuned:
    """What the stages measured and chose."""

    costs: CostModel  # of passes without padding
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
        self._temperatures = tuple(temperatures)
        self._unfinished = unfinished
        self._stages = unfinished.stages
        self._run = run
        self._exact = exact
        self._started = time.perf_counter()
        self._notices: list[str] = []
        self._tokens = [token for text in texts.shipped("calibrate") for token in self._prompt(text)]

    def measure(self, prompts: Sequence[Prompt] | None = None) -> Tuned:
        """Run all stages. prompts: the user's own; every third of them validates, and the others calibrate.

        Raises KeyboardInterrupt, between two passes, once the run is interrupted.
        """
        calibrate_on, validate_on = self._texts(prompts)
        target_table = self._target_table()
        sizes = self._measure_exactness(target_table)
        ctx = target_table.times[0].ctx
        pads = self._exact or is_free(sizes, {n: target_table.ms(n, ctx) for n in target_table.sizes})
        if pads:
            self._target.padding = sizes
        costs = CostModel(target_table.padded(self._target.padding), self._draft_table())
        measured: list[MeasuredAcceptance] = []
        if costs.draft:
            measured, costs = self._measure_acceptance(costs, calibrate_on)
        acceptance = [one.acceptance for one in measured]
        predictions = self._predict(measured, costs)
        validated = self._validate(predictions, acceptance, costs, validate_on)
        plans = [self._choose(t, predictions[t], [v for v in validated if v.temperature == t]) for t in predictions]
        unpadded = replace(costs, target=target_table)
        return Tuned(unpadded, sizes, pads, acceptance, predictions, validated, plans, self._notices)

    # --- stages ----------------------------------------------------------------------------------------------------

    def _target_table(self) -> CostTable:
        if self._stages.target:
            return self._stages.target
        timer = TargetTimer(self._target, self._tokens)
        largest = min(self._effort.largest, self._target.context.config.n_outputs)
        timer.fill(_CONTEXTS[0])
        plain_ms = statistics.median(timer.ms(1) for _ in range(3))
        sizes, total_ms = [1], plain_ms
        for size in _SIZES[1:]:
            if size > largest:
                break
            # A pass that takes longer than its tokens could ever make up for ends the useful sizes.
            ms = timer.ms(size) if size > 8 else plain_ms
            if ms > MOST_TOKENS * plain_ms:
                break
            total_ms += ms
            sizes.append(size)
        if 3 * total_ms > 1e3 * _TARGET_TABLE * self._effort.seconds:
            sizes = [size for size in sizes if size & (size - 1) == 0]  # more are added where the times are jagged
        self._stages.target = self._table("target", timer, sizes, plain_ms * sum(sizes) / 8, _TARGET_TABLE)
        self._unfinished.save()
        return self._stages.target

    def _draft_table(self) -> CostTable | None:
        draft = self._model.engine.draft
        if draft is None or self._stages.draft:
            return self._stages.draft
        timer = DraftTimer(draft, self._tokens)
        timer.fill(_CONTEXTS[0])
        self._stages.draft = self._table("draft", timer, _DRAFT_SIZES, timer.ms(1) * 20, _DRAFT_TABLE)
        self._unfinished.save()
        return self._stages.draft

    def _table(
        self, name: str, timer: TargetTimer | DraftTimer, sizes: Sequence[int], round_ms: float, share: float
    ) -> CostTable:
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

    def _measure_exactness(self, costs: CostTable) -> PassSizes:
        if self._stages.exact_sizes is None:
            self._run.show("in passes of which sizes are logits the same bits?")
            self._stages.exact_sizes, _ = exact_sizes(self._target, self._tokens, costs.largest)
            self._unfinished.save()
        return self._stages.exact_sizes

    def _measure_acceptance(
        self, costs: CostModel, prompts: Sequence[Prompt]
    ) -> tuple[list[MeasuredAcceptance], CostModel]:
        """The acceptance at every temperature, and the costs with specrun's own overhead."""
        plain_ms = costs.target.ms(1, 64)
        largest = max(n for n in costs.target.sizes if costs.target.ms(n, 64) < MOST_TOKENS * plain_ms)
        writes_fast = costs.target.ms(min(16, largest), 64) < 3 * plain_ms
        write_plan = SPECEXEC.plan(min(16, largest), 8) if writes_fast else OFF.plan()
        meter = AcceptanceMeter(self._model.engine, write_plan, max(largest, 2), max(2, min(16, largest // 4)))
        earlier = {measured.acceptance.temperature: measured for measured in self._stages.acceptance}
        results = []
        for i, temperature in enumerate(self._temperatures):
            if temperature not in earlier:
                share = _EXACTNESS + (_ACCEPTANCE - _EXACTNESS) * (i + 1) / len(self._temperatures)
                measured = meter.measure(prompts, temperature, self._effort.n_positions, self._stage(share))
                earlier[temperature] = measured
                self._stages.acceptance.append(measured)
                self._stages.overhead = meter.overhead()
                self._unfinished.save()
            results.append(earlier[temperature])
        return results, replace(costs, overhead=self._stages.overhead) if self._stages.overhead else costs

    def _predict(self, measured: Sequence[MeasuredAcceptance], costs: CostModel) -> dict[float, list[Prediction]]:
        ctx = _CONTEXTS[0]
        if not measured:
            return {self._temperatures[0]: [Prediction(OFF.plan(), 1e3 / costs.plain_ms(ctx), 1.0)]}
        predictions = {}
        for i, one in enumerate(measured):
            temperature = one.acceptance.temperature
            self._run.show(f"choosing among plans at temperature {temperature:g}")
            share = _ACCEPTANCE + (_REPLAY - _ACCEPTANCE) * (i + 1) / len(measured)
            plans = choose.candidates(costs, costs.target.largest, ctx, one.acceptance.positional)
            predictions[temperature] = choose.ranked(plans, one, costs, self._stage(share, _MIN_REPLAY_SECONDS))
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
            share = _REPLAY + (1 - _REPLAY) * (i + 1) / len(acceptance)
            chosen = choose.worth_running(predictions[measured.temperature], costs.target.largest)
            n_tokens = self._tokens_to_validate(chosen, len(prompts))
            results += validate(self._model, chosen, prompts, measured, n_tokens, costs, self._stage(share))
        return results

    def _tokens_to_validate(self, chosen: Sequence[Prediction], n_prompts: int) -> int:
        """Tokens behind every prompt, such that all plans fit into the time for one temperature."""
        seconds = (1 - _REPLAY) * self._effort.seconds / len(self._temperatures)
        seconds_per_token = sum(1 / p.tokens_per_second for p in chosen) * n_prompts
        return max(_MIN_VALIDATED_TOKENS, min(self._effort.n_tokens, int(seconds / seconds_per_token)))

    def _choose(self, temperature: float, predictions: list[Prediction], results: list[Validated]) -> TunedPlan:
        """The fastest plan by what was measured; without a draft, nothing was run and plain decoding is the plan."""
        if not results:
            plain = next(p for p in predictions if not p.plan.drafts)
            return TunedPlan(temperature, plain.plan, plain.tokens_per_second, 1.0, plain.tokens_per_second)
        off = next(result for result in results if not result.plan.drafts)
        change = off.plain_seconds / off.seconds - 1
        if abs(change) > _DRIFT:
            self._notices.append(
                f"plain decoding was {abs(change):.0%} {'faster' if change > 0 else 'slower'} when plans were run than "
                f"by the tables (temperature {temperature:g}): the speed of this machine varies"
            )
        return fastest(temperature, results)

    # --- helpers ---------------------------------------------------------------------------------------------------

    def _stage(self, share: float, min_seconds: float = 0.0) -> Run:
        """A stage that should be over after this share of the effort's time, and gets `min_seconds` in any case."""
        seconds = self._started + share * self._effort.seconds - time.perf_counter()
        return self._run.stage(max(seconds, min_seconds))

    def _prompt(self, text: texts.TuningText) -> list[int]:
        return self._model.prompt_tokens(text.prompt)

    def _texts(self, prompts: Sequence[Prompt] | None) -> tuple[list[Prompt], list[list[int]]]:
        """The prompts to calibrate on and those to validate on, cut off so that what is written fits the context."""
        room = self._model.engine.ctx_size - self._effort.n_positions - TAIL - 1
        if prompts:
            cut = [(kind, tokens[:room]) for kind, tokens in prompts]
            held_out = [tokens for _, tokens in cut[2::3]] or [tokens for _, tokens in cut]
            return [prompt for i, prompt in enumerate(cut) if i % 3 != 2], held_out
        calibrate_on = [(text.kind, self._prompt(text)[:room]) for text in texts.shipped("calibrate")]
        return calibrate_on, [self._prompt(text)[:room] for text in texts.shipped("validate")]
