"""One run of `specrun tune`: cost tables, exactness, acceptance, predictions, validation, a profile."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

from specrun.engine import calibration_texts as texts
from specrun.engine.model import Model
from specrun.engine.prompt_tokens import chat_template, single_turn_tokens
from specrun.llama.invariance import exact_up_to
from specrun.profiles.profile import TunedPlan
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF
from specrun.speculation.planning.costs import CostModel, CostTable
from specrun.speculation.planning.plan_space import MOST_TOKENS
from specrun.tuning import choose
from specrun.tuning.acceptance_meter import TAIL, Acceptance, AcceptanceMeter
from specrun.tuning.effort import BUDGETS, Effort
from specrun.tuning.partial import Partial
from specrun.tuning.pass_timer import DraftTimer, TargetTimer, table
from specrun.tuning.replay import Prediction
from specrun.tuning.result import Result
from specrun.tuning.validate import TIE, Validated, expectations, validate

Progress = Callable[[str], None]

_SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
_DRAFT_SIZES = (1, 2, 3, 4, 6, 8, 12, 16)
_CONTEXTS = (64, 768)


# Shares of the seconds at whose end a stage should be over.
_TABLES, _DRAFT_TABLE, _EXACTNESS, _ACCEPTANCE, _REPLAY = 0.25, 0.28, 0.35, 0.68, 0.75
# An adaptive tree that is as fast as a fixed one up to noise is preferred, as it follows what changes.
_LEAST_REPLAY = 6.0  # seconds
_DRIFT = 0.1  # of plain decoding's rate between tables and validation, above which it is said


class Tuner:
    """Measures one loaded pair. partial: what an earlier run that was cut short has measured already.

    interrupted: asked between passes; once true, the run ends with KeyboardInterrupt. exact: allow only plans whose
    passes are bit-exact.
    """

    def __init__(
        self,
        model: Model,
        effort: Effort,
        temperatures: Sequence[float],
        partial: Partial,
        progress: Progress,
        interrupted: Callable[[], bool],
        exact: bool = False,
    ) -> None:
        self._exact = exact
        self._interrupted = interrupted
        self._model = model
        self._budget = BUDGETS[effort]
        self._temperatures = tuple(temperatures)
        self._partial = partial
        self._show = progress
        self._started = time.perf_counter()
        self._notices: list[str] = []
        self._template = chat_template(model.llama_model)
        self._tokens = [token for text in texts.shipped("calibrate") for token in self._prompt(text)]

    def run(self, prompts: Sequence[tuple[str, list[int]]] | None = None) -> Result:
        """All stages. prompts: the user's own (kind, token ids), for calibrating on all but every third, which
        validate.
        """
        calibrate_on, validate_on = self._texts(prompts)
        target = self._target_table()
        draft = self._draft_table()
        exact = self._exact_up_to(target)
        costs = CostModel(target, draft)
        acceptance: list[Acceptance] = []
        if draft:
            acceptance, costs = self._acceptance(costs, calibrate_on)
        predictions = self._predictions(acceptance, costs)
        validated = self._validate(predictions, acceptance, costs, validate_on)
        plans = [self._tuned(t, predictions[t], [v for v in validated if v.temperature == t]) for t in predictions]
        return Result(costs, exact, acceptance, predictions, validated, plans, self._notices)

    # --- stages ----------------------------------------------------------------------------------------------------

    def _target_table(self) -> CostTable:
        if known := self._partial.table("target"):
            return known
        timer = TargetTimer(self._model.engine.target, self._tokens, self._largest())
        timer.fill(_CONTEXTS[0])
        plain = statistics.median(timer.ms(1) for _ in range(3))
        sizes, total = [1], plain
        for size in _SIZES[1:]:
            if size > timer.largest:
                break
            # A pass that takes longer than any tree could bring in tokens ends the useful sizes.
            ms = timer.ms(size) if size > 8 else plain
            if ms > MOST_TOKENS * plain:
                break
            total += ms
            sizes.append(size)
        if 3 * total > 1e3 * _TABLES * self._budget.seconds:
            sizes = [size for size in sizes if size & (size - 1) == 0]  # few, and more where it is jagged
        found = self._table(timer, sizes, plain * sum(sizes) / 8, _TABLES)
        self._partial.keep_table("target", found)
        return found

    def _draft_table(self) -> CostTable | None:
        if self._model.engine.draft is None:
            return None
        if known := self._partial.table("draft"):
            return known
        timer = DraftTimer(self._model.engine.draft, self._tokens, max(_DRAFT_SIZES))
        timer.fill(_CONTEXTS[0])
        found = self._table(timer, list(_DRAFT_SIZES), timer.ms(1) * 20, _DRAFT_TABLE)
        self._partial.keep_table("draft", found)
        return found

    def _table(self, timer: TargetTimer | DraftTimer, sizes: list[int], round_ms: float, share: float) -> CostTable:
        which = "target" if isinstance(timer, TargetTimer) else "draft"
        # Short passes are measured more often: they scatter more, and cost little.
        n_rounds = self._budget.rounds if round_ms > 1000 else 3 * self._budget.rounds
        contexts = [ctx for ctx in _CONTEXTS if ctx + max(sizes) <= self._model.engine.ctx_size] or [_CONTEXTS[0]]
        found, disturbed = table(
            timer, sizes, contexts, n_rounds, self._over(share), lambda text: self._show(f"{which}: {text}")
        )
        if disturbed > n_rounds:
            self._notices.append(
                f"the times of the {which} drifted ({disturbed} rounds were measured again): "
                "something else used this machine, or it grew hot; tune again when it is quiet"
            )
        return found

    def _exact_up_to(self, target: CostTable) -> int:
        if self._partial.exact_up_to is None:
            self._show("are logits the same bits in passes of every size?")
            ctx = min(600, self._model.engine.ctx_size - target.largest - 64)
            n_compared = 32 if target.ms(1, 0) < 200 else 8
            self._partial.keep_exact(
                exact_up_to(
                    self._model.engine.target, self._tokens, target.sizes, max(ctx, 8), n_compared,
                    self._over(_EXACTNESS),
                )
            )  # fmt: skip
        return self._partial.exact_up_to or 1

    def _acceptance(
        self, costs: CostModel, prompts: Sequence[tuple[str, list[int]]]
    ) -> tuple[list[Acceptance], CostModel]:
        found: list[Acceptance] = []
        useful = [n for n in costs.target.sizes if costs.target.ms(n, 64) < MOST_TOKENS * costs.target.ms(1, 64)]
        largest = max(useful)
        free = costs.target.ms(min(16, largest), 64) < 3 * costs.target.ms(1, 64)
        write = SPECEXEC.plan(min(16, largest), 8) if free else OFF.plan()
        meter = AcceptanceMeter(self._model.engine, write, max(largest, 2), max(2, min(16, largest // 4)))
        for i, temperature in enumerate(self._temperatures):
            if known := self._partial.acceptance(temperature):
                found.append(known)
                continue
            share = _EXACTNESS + (_ACCEPTANCE - _EXACTNESS) * (i + 1) / len(self._temperatures)
            seconds = self._started + share * self._budget.seconds - time.perf_counter()
            measured = meter.measure(prompts, temperature, self._budget.n_positions, seconds, self._show)
            found.append(measured)
            self._partial.keep_acceptance(measured, meter.overhead())
        overhead = self._partial.overhead
        return found, CostModel(costs.target, costs.draft, overhead) if overhead else costs

    def _predictions(self, acceptance: Sequence[Acceptance], costs: CostModel) -> dict[float, list[Prediction]]:
        ctx = _CONTEXTS[0]
        plain = Prediction(OFF.plan(), 1e3 / costs.plain_ms(ctx), 1.0)
        if not acceptance:
            return {temperature: [plain] for temperature in self._temperatures[:1]}
        found = {}
        for i, measured in enumerate(acceptance):
            self._show(f"choosing among plans at temperature {measured.temperature:g}")
            share = _ACCEPTANCE + (_REPLAY - _ACCEPTANCE) * (i + 1) / len(acceptance)
            plans = choose.candidates(costs, self._largest_allowed(costs), ctx, measured.positional)
            found[measured.temperature] = choose.ranked(plans, measured, costs, self._over(share, _LEAST_REPLAY))
        return found

    def _validate(
        self,
        predictions: dict[float, list[Prediction]],
        acceptance: Sequence[Acceptance],
        costs: CostModel,
        prompts: Sequence[list[int]],
    ) -> list[Validated]:
        results: list[Validated] = []
        if self._exact:
            self._model.engine.target.largest_pass = self._partial.exact_up_to
        for i, measured in enumerate(acceptance):
            share = _REPLAY + (1 - _REPLAY) * (i + 1) / len(acceptance)
            tried = choose.worth_running(predictions[measured.temperature], self._largest_allowed(costs))
            results += validate(
                self._model, tried, prompts, measured.temperature, self._tokens_to_validate(tried, prompts),
                costs, measured.calibration, self._over(share), self._show,
            )  # fmt: skip
        return results

    def _tokens_to_validate(self, tried: Sequence[Prediction], prompts: Sequence[list[int]]) -> int:
        """Tokens behind every prompt, so many that all of them fit the time that is left, but 16 at least."""
        left = (1 - _REPLAY) * self._budget.seconds / len(self._temperatures)
        per_token = sum(1 / p.tokens_per_second for p in tried) * len(prompts)
        return max(16, min(self._budget.n_tokens, int(left / per_token)))

    def _tuned(self, temperature: float, predictions: list[Prediction], tried: list[Validated]) -> TunedPlan:
        """Measurement wins: the plan that is fastest by what it did when it was run."""
        plain = next(p for p in predictions if not p.plan.depth)
        if not tried:
            return TunedPlan(temperature, plain.plan, plain.tokens_per_second, 1.0, plain.tokens_per_second)
        off = next(v for v in tried if not v.plan.depth)
        drift = off.measured / off.prediction.tokens_per_second
        self._note_drift(off)
        expected = expectations(tried, drift)
        tried = [v for v in tried if v.plan in expected]
        best = max(tried, key=lambda v: expected[v.plan] * (TIE if v.plan.method.is_adaptive else 1))
        other = max((v for v in tried if v.plan.depth), key=lambda v: expected[v.plan], default=None)
        if best.plan.depth:
            other = None
        return TunedPlan(
            temperature,
            best.plan,
            expected[best.plan],
            expected[best.plan] * best.seconds / best.passes,
            expected[off.plan],
            other.plan if other else None,
            expected[other.plan] if other else 0.0,
        )

    def _note_drift(self, off: Validated) -> None:
        change = off.plain_seconds / off.seconds - 1
        if abs(change) > _DRIFT:
            faster = "faster" if change > 0 else "slower"
            self._notices.append(
                f"plain decoding was {abs(change):.0%} {faster} when plans were run than by the tables "
                f"(temperature {off.temperature:g}): the speed of this machine varies"
            )

    # --- helpers ---------------------------------------------------------------------------------------------------

    def _largest(self) -> int:
        return min(self._budget.largest, self._model.engine.target.context.config.n_outputs)

    def _largest_allowed(self, costs: CostModel) -> int:
        """Nodes of the largest tree that may be taken: of those whose passes were measured, and with `exact` are
        bit-exact.
        """
        largest = costs.target.largest
        return min(largest, self._partial.exact_up_to or 1) if self._exact else largest

    def _over(self, share: float, least_seconds: float = 0.0) -> Callable[[], bool]:
        """Whether a stage that should end with this share of the time should end now."""
        end = max(self._started + share * self._budget.seconds, time.perf_counter() + least_seconds)

        def over() -> bool:
            if self._interrupted():
                raise KeyboardInterrupt
            return time.perf_counter() > end

        return over

    def _prompt(self, text: texts.TuningText) -> list[int]:
        return single_turn_tokens(self._model.llama_model, text.prompt, self._template)

    def _texts(
        self, prompts: Sequence[tuple[str, list[int]]] | None
    ) -> tuple[Sequence[tuple[str, list[int]]], Sequence[list[int]]]:
        room = self._model.engine.ctx_size - self._budget.n_positions - TAIL - 1
        if prompts:
            shown = [(kind, tokens[:room]) for kind, tokens in prompts]
            held_out = [tokens for _, tokens in shown[2::3]] or [tokens for _, tokens in shown]
            return [entry for i, entry in enumerate(shown) if i % 3 != 2], held_out
        calibrate_on = [(text.kind, self._prompt(text)[:room]) for text in texts.shipped("calibrate")]
        return calibrate_on, [self._prompt(text)[:room] for text in texts.shipped("validate")]
