"""The stages of `specrun tune` on a loaded pair: what passes take, which are exact, and texts that are written."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from specrun import clock
from specrun.decoding import calibration_texts as texts
from specrun.llama.invariance import depends_on_size, exact_sizes
from specrun.loading.default_settings import keeps_bits
from specrun.loading.model import Model
from specrun.long_run import Run
from specrun.profiles.profile import Acceptance, TunedPlan
from specrun.speculation.drafters.cost_aware import MERGED
from specrun.speculation.planning.costs import CostModel, CostTable
from specrun.speculation.planning.guide import RunCosts
from specrun.speculation.planning.pass_sizes import PLAIN_ONLY, PassSizes, is_free, may_be_free
from specrun.speculation.planning.pass_times import MOST_TOKENS
from specrun.tuning.learning_texts import Learned, Prompt, learn
from specrun.tuning.pass_timer import DraftTimer, PassTimer, TargetTimer, table
from specrun.tuning.unfinished import UnfinishedRun

# Tokens of the passes that are timed: of the target one after the other, as long as the next one may pay; sizes between
# them are timed where they are not on a line. And the context lengths.
_CLIMB = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_STEEP = (1, 4, 16, 64, 256, 512)  # the same where passes are slow
_DRAFT_SIZES = (1, 2, 4, 8, 16, 32, 64)
_CONTEXTS = (64, 768)
# A larger pass does not pay if it takes as long as so many plain passes, and more tokens for each of its own than this:
# a tree of twice the nodes commits about 0.6 tokens more (docs/benchmarks/growth.md).
_MOST_PLAIN = 24.0

_PASSES = 60.0  # plain passes that all stages may take, where they take longer than the effort's seconds
_TABLES = 0.35  # share of the time after which the tables should be there
_SLOW_MS = 200.0  # where a plain pass takes longer, few sizes are timed, once
_FEW_TEXTS = 4  # that are written then, at each temperature
_STEP_MS = 0.3  # of specrun's own work in a pass, in which it samples and accepts

EffortName = Literal["quick", "default", "thorough"]


@dataclass(frozen=True)
class Effort:
    """How much a run measures."""

    seconds: float  # about how long all stages after loading take together, or the time of 60 plain passes
    rounds: int  # rounds of the cost tables
    n_texts: int  # texts that are written at each temperature
    n_tokens: int  # most tokens of each of them


EFFORTS: dict[EffortName, Effort] = {
    "quick": Effort(20, 2, 4, 64),
    "default": Effort(45, 3, 8, 128),
    "thorough": Effort(600, 9, 13, 384),
}


@dataclass(frozen=True)
class Tuned:
    """What the stages measured and chose."""

    costs: CostModel
    exact_sizes: PassSizes  # passes of these sizes give a token the same bits
    pads: bool  # whether every pass was padded to these sizes when texts were written
    acceptance: list[Acceptance]  # one for each temperature; empty without a draft
    plans: list[TunedPlan]  # one for each temperature


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
        self._run = run
        self._exact = exact
        self._started = clock.now()
        self._tokens = [token for text in texts.shipped("calibrate") for token in model.prompt_tokens(text.prompt)]

    def measure(self, prompts: Sequence[Prompt] | None = None) -> Tuned:
        """Run all stages. prompts: the user's own, which texts are written behind; None for those of several kinds."""
        once = self._unfinished.once
        target_table = once("target", self._target_table)
        sizes = once("exact_sizes", lambda: self._exact_sizes(target_table))
        ctx = target_table.times[0].ctx
        pads = self._exact or is_free(sizes, {n: target_table.ms(n, ctx) for n in target_table.sizes})
        if pads:
            self._target.padding = sizes
        draft_table = once("draft", self._draft_table) if self._model.engine.draft else None
        costs = RunCosts.of(CostModel(target_table, draft_table), self._target.padding)
        learned = once("learned", lambda: self._learned(costs, target_table.largest, prompts))
        acceptance = [one.acceptance for one in learned if one.acceptance]
        plans = [one.plan for one in learned]
        return Tuned(CostModel(target_table, learned[-1].draft), sizes, pads, acceptance, plans)

    def _target_table(self) -> CostTable:
        """Sizes climb by factors as long as the next one may pay, so slow targets need as few passes as fast ones."""
        timer = TargetTimer(self._target, self._tokens, _STEP_MS)
        timer.fill(_CONTEXTS[0])
        timer.ms(1)
        plain_ms = statistics.median(timer.ms(1) for _ in range(2))
        is_slow = plain_ms > _SLOW_MS
        if is_slow:
            self._effort = replace(self._effort, n_texts=min(self._effort.n_texts, _FEW_TEXTS))
        self._effort = replace(self._effort, seconds=max(self._effort.seconds, _PASSES * plain_ms / 1e3))
        largest = min(MOST_TOKENS, self._target.room())
        sizes = [1]
        for size in (size for size in (_STEEP if is_slow else _CLIMB)[1:] if size <= largest):
            if size > 8 and timer.ms(size) > _MOST_PLAIN * plain_ms:
                break
            sizes.append(size)
        round_ms = plain_ms * sum(sizes) / 8
        n_rounds = 1 if is_slow else self._effort.rounds * (3 if round_ms < 1000 else 1)
        return self._table("target", timer, sizes, n_rounds, _TABLES)

    def _draft_table(self) -> CostTable:
        timer = DraftTimer(self._model.engine, self._tokens)
        timer.fill(_CONTEXTS[0])
        return self._table("draft", timer, _DRAFT_SIZES, self._effort.rounds, _TABLES + 0.05)

    def _table(self, name: str, timer: PassTimer, sizes: Sequence[int], n_rounds: int, share: float) -> CostTable:
        contexts = [ctx for ctx in _CONTEXTS if ctx + max(sizes) <= self._model.engine.ctx_size] or [_CONTEXTS[0]]
        return table(timer, sizes, contexts, n_rounds, self._stage(share).labelled(name))

    def _exact_sizes(self, costs: CostTable) -> PassSizes:
        self._run.show("in passes of which sizes are logits the same bits?")
        # The whole comparison takes long: it is for types that keep bits at no cost, and for users who ask for them.
        quick = not (self._exact or keeps_bits(self._target.context.model.file))
        ctx = costs.times[0].ctx
        is_dear = not may_be_free({n: costs.ms(n, ctx) for n in costs.sizes})
        if quick and is_dear and depends_on_size(self._target, self._tokens):
            return PLAIN_ONLY
        sizes, _ = exact_sizes(self._target, self._tokens, costs.largest, quick)
        # Passes of sizes that were not timed take too long for any plan.
        return sizes if any(n in sizes for n in costs.sizes) else PLAIN_ONLY

    def _learned(self, costs: RunCosts, largest: int, prompts: Sequence[Prompt] | None) -> list[Learned]:
        """What the texts of each temperature teach."""
        budget = self._target.padding.largest(min(largest, self._target.room()))
        plan = MERGED.plan(max(budget, 2), max(budget - 1, 1))
        found = []
        for i, temperature in enumerate(self._temperatures):
            share = _TABLES + (1 - _TABLES) * (i + 1) / len(self._temperatures)
            chosen = self._texts(prompts, i)
            found.append(
                learn(self._model, plan, costs, temperature, chosen, self._effort.n_tokens, self._stage(share))
            )
        return found

    def _stage(self, share: float) -> Run:
        """A stage that should be over after this share of the effort's time."""
        return self._run.stage(max(self._started + share * self._effort.seconds - clock.now(), 0.0))

    def _texts(self, prompts: Sequence[Prompt] | None, first: int) -> list[Prompt]:
        """The prompts to write behind, of different kinds, cut off so that what is written fits the context.

        first: how many of specrun's own are left out, so that temperatures have different ones.
        """
        room = max(self._model.engine.ctx_size - self._effort.n_tokens - 1, 8)
        if not prompts:
            shipped = [*texts.shipped("calibrate"), *texts.shipped("validate")]
            shipped = [*shipped[first:], *shipped[:first]]
            prompts = [(text.kind, self._model.prompt_tokens(text.prompt)) for text in shipped]
        return [(kind, tokens[:room]) for kind, tokens in prompts[: self._effort.n_texts]]
