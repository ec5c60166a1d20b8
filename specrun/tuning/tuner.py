"""The stages of `specrun tune` on a loaded pair: what passes take, which are exact, and texts that are written."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from specrun import clock
from specrun.decoding import calibration_texts as texts
from specrun.llama.invariance import exact_sizes, holds, large_sizes
from specrun.loading.default_settings import keeps_bits
from specrun.loading.model import Model
from specrun.long_run import Run
from specrun.speculation.drafters.cost_aware import MERGED
from specrun.speculation.planning.costs import CostModel, CostTable
from specrun.speculation.planning.guide import RunCosts
from specrun.speculation.planning.pass_sizes import ANY_SIZE, PLAIN_ONLY, PassSizes
from specrun.speculation.planning.pass_times import MOST_TOKENS
from specrun.tuning.learning_texts import COPIED, Learned, Prompt, learn
from specrun.tuning.pass_timer import DraftTimer, TargetTimer, Timings, table
from specrun.tuning.settings_trials import is_free
from specrun.tuning.unfinished import Stages, UnfinishedRun

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
_FEW_TEXTS = 2  # that are written then, at each temperature
_LEAST_TEXTS = 0.5  # share of the time that texts get at least
_STEP_MS = 0.3  # of specrun's own work in a pass, in which it samples and accepts

EffortName = Literal["quick", "default", "thorough"]


@dataclass(frozen=True)
class Effort:
    """How much a run measures."""

    seconds: float  # about how long all stages after loading take together, or the time of 60 plain passes
    rounds: int  # rounds of the cost tables
    n_texts: int  # texts that are written at each temperature, besides one that copies its prompt
    n_tokens: int  # most tokens of each of them


EFFORTS: dict[EffortName, Effort] = {
    "quick": Effort(20, 2, 4, 64),
    "default": Effort(45, 3, 8, 128),
    "thorough": Effort(600, 9, 12, 384),
}


@dataclass
class Tuner:
    """Measures one loaded pair."""

    model: Model
    effort: Effort  # it becomes what suits the target
    temperatures: Sequence[float]
    unfinished: UnfinishedRun  # keeps the results of the stages, and has those that an earlier run has measured
    run: Run
    exact: bool = False  # pad every pass to sizes that give a token the same bits

    def __post_init__(self) -> None:
        self._target = self.model.engine.target
        self._started = clock.now()
        self._tokens = [token for text in texts.shipped("calibrate") for token in self.model.prompt_tokens(text.prompt)]

    def measure(self, prompts: Sequence[Prompt] | None = None) -> Stages:
        """Run all stages. prompts: the user's own, which texts are written behind; None for those of several kinds."""
        once = self.unfinished.once
        target = once("target", self._target_table)
        self._suit_effort(target.ms(1, target.times[0].ctx))  # an earlier run may have measured the table
        sizes = once("exact_sizes", lambda: self._exact_sizes(target))
        self.unfinished.stages.pads = self.exact or is_free(sizes, _by_size(target))
        if self.unfinished.stages.pads:
            self._target.padding = sizes
        draft = once("draft", self._draft_table) if self.model.engine.draft else None
        costs = RunCosts.of(CostModel(target, draft), self._target.padding)
        once("learned", lambda: self._learned(costs, target.largest, prompts))
        return self.unfinished.stages

    def _suit_effort(self, plain_ms: float) -> bool:
        """Give passes that take long more time, and ask for fewer texts. Returns whether so few are made."""
        seconds, n_texts = max(self.effort.seconds, _PASSES * plain_ms / 1e3), self.effort.n_texts
        is_slow = plain_ms > _SLOW_MS
        self.effort = replace(self.effort, seconds=seconds, n_texts=min(n_texts, _FEW_TEXTS) if is_slow else n_texts)
        return is_slow

    def _target_table(self) -> CostTable:
        """Sizes climb by factors as long as the next one may pay, so slow targets need as few passes as fast ones."""
        self.run.labelled("target").show("how many tokens may a pass have?")
        timer = TargetTimer(self._target, self._tokens, _STEP_MS)
        timer.fill(_CONTEXTS[0])
        timer.ms(1)
        climbed = Timings(_CONTEXTS[0], {1: [timer.ms(1), timer.ms(1)]})
        plain_ms = statistics.median(climbed.ms[1])
        is_slow = self._suit_effort(plain_ms)
        largest = min(MOST_TOKENS, self._target.room())
        for size in (size for size in (_STEEP if is_slow else _CLIMB)[1:] if size <= largest):
            ms = timer.ms(size)
            if size > 8 and ms > _MOST_PLAIN * plain_ms:
                break
            climbed.ms[size] = [ms]
        sizes, run = list(climbed.ms), self._stage("target", _TABLES)
        if is_slow:  # what was timed on the way up is enough
            return table(timer, sizes, self._contexts(sizes), 1, run, climbed)
        n_rounds = self.effort.rounds * (3 if plain_ms * sum(sizes) / 8 < 1000 else 1)
        return table(timer, sizes, self._contexts(sizes), n_rounds, run)

    def _draft_table(self) -> CostTable:
        timer, run = DraftTimer(self.model.engine, self._tokens), self._stage("draft", _TABLES + 0.05)
        return table(timer, _DRAFT_SIZES, self._contexts(_DRAFT_SIZES), self.effort.rounds, run)

    def _contexts(self, sizes: Sequence[int]) -> list[int]:
        return [ctx for ctx in _CONTEXTS if ctx + max(sizes) <= self.model.engine.ctx_size] or [_CONTEXTS[0]]

    def _exact_sizes(self, costs: CostTable) -> PassSizes:
        self.run.show("in passes of which sizes are logits the same bits?")
        target, ms = self._target, _by_size(costs)
        if self.exact:
            sizes, _ = exact_sizes(target, self._tokens, costs.largest)
        else:  # more than what costs nothing is for users who ask for it
            large = large_sizes(target.context.config.settings)
            free = [ANY_SIZE, large] if keeps_bits(target.context.model.file) else [large]
            held = (one for one in free if is_free(one, ms) and holds(one, target, self._tokens, costs.largest))
            sizes = next(held, PLAIN_ONLY)
        # Passes of sizes that were not timed take too long for any plan.
        return sizes if any(n in sizes for n in costs.sizes) else PLAIN_ONLY

    def _learned(self, costs: RunCosts, largest: int, prompts: Sequence[Prompt] | None) -> Learned:
        budget = self._target.padding.largest(min(largest, self._target.room()))
        plan = MERGED.plan(max(budget, 2), max(budget - 1, 1))
        left = self._started + self.effort.seconds - clock.now()
        run = self.run.stage(max(left, _LEAST_TEXTS * self.effort.seconds))
        n_tokens = self.effort.n_tokens
        return learn(self.model, plan, costs, self.temperatures, self._texts(prompts), n_tokens, run)

    def _stage(self, name: str, share: float) -> Run:
        """A stage that should be over after this share of the effort's time."""
        return self.run.stage(max(self._started + share * self.effort.seconds - clock.now(), 0.0)).labelled(name)

    def _texts(self, prompts: Sequence[Prompt] | None) -> list[Prompt]:
        """The prompts to write behind, of different kinds, cut off so that what is written fits the context."""
        n, room = self.effort.n_texts, max(self.model.engine.ctx_size - self.effort.n_tokens - 1, 8)
        if not prompts:
            shipped = [*texts.shipped("calibrate"), *texts.shipped("validate")]
            usual = [text for text in shipped if text.kind != COPIED]
            copied = [text for text in shipped if text.kind == COPIED]
            prompts = [(text.kind, self.model.prompt_tokens(text.prompt)) for text in (*usual[:n], *copied)]
            n = len(prompts)
        return [(kind, tokens[:room]) for kind, tokens in prompts[:n]]


def _by_size(costs: CostTable) -> dict[int, float]:
    """Milliseconds of a pass by its tokens, after a short text."""
    return {n: costs.ms(n, costs.times[0].ctx) for n in costs.sizes}
