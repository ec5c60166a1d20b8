"""Runs the rows of a benchmark in turn, so that a change of the machine's speed affects all of them alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import psutil

from specrun.bench import BenchPrompt, fitting
from specrun.bench.rows import AUTO_ROW, OFF_ROW, BenchSettings, Row, RowPlans, rate, summarise
from specrun.decoding.generation import Generation, Request
from specrun.decoding.passes import write_alone
from specrun.decoding.statistics import Statistics
from specrun.display_text import counted
from specrun.loading.model import Model
from specrun.long_run import Run
from specrun.speculation.controllers.chooser import FixedPlan, PlanChooser
from specrun.speculation.method import OFF, Plan
from specrun.speculation.planning.calibration import Calibration
from specrun.speculation.planning.guide import Guide, PassRecord
from specrun.speculation.tree import TokenTree


class Bench:
    """A pair under measurement. All rows share the contexts; the KV caches are emptied before every text."""

    def __init__(self, model: Model, settings: BenchSettings, run: Run) -> None:
        self._model = model
        self._settings = settings
        self._run = run
        self._plans = RowPlans(model, settings, run.note)
        self._n_expected = self._n_written = 0  # texts

    def run(self, prompts: Sequence[BenchPrompt], is_sweep: bool = False) -> list[Row]:
        """Choose the best chain and tree on the first prompt of each kind, then measure every row on all the others.

        A kind with a single prompt is measured on that prompt. The runs that choose are the warm-up. is_sweep: measure
        the rows' methods at every budget and depth of the grid, and `auto`, on all prompts instead.

        Raises PromptError if the answers to no prompt fit the context.
        """
        settings, by_kind, rows = self._settings, dict[str, list[list[int]]](), list[Row]()
        for prompt, tokens in fitting(prompts, self._model, settings.max_tokens, settings.raw, self._run.note):
            by_kind.setdefault(prompt.kind, []).append(tokens)
        measured = {kind: texts if is_sweep else texts[1:] or texts for kind, texts in by_kind.items()}
        grid = self._plans.grid() if is_sweep else {}
        n_rows = len(grid) + (AUTO_ROW in settings.methods) if is_sweep else self._plans.n_rows
        n_tried = 1 if is_sweep else 1 + sum(map(len, self._plans.candidates().values()))
        self._n_expected = n_tried * len(by_kind) + n_rows * settings.repetitions * sum(map(len, measured.values()))
        self._n_written = 0
        for kind, texts in by_kind.items():
            self._write(texts[:1], FixedPlan(OFF.plan()), f"{kind}: warming up")
            if is_sweep:
                rows += self._measure(kind, texts, grid, {})
                continue
            plans, predicted = self._select(kind, texts[0])
            plans |= self._plans.named(plans)
            wanted = {name: plan for name, plan in plans.items() if name in (OFF_ROW, *settings.methods)}
            rows += self._measure(kind, measured[kind], wanted, predicted)
        return rows

    def _select(self, kind: str, text: list[int]) -> tuple[dict[str, Plan], dict[str, float]]:
        """The best plans and their rates on `text`, in tokens per second, both by row."""
        plans, predicted = dict[str, Plan](), dict[str, float]()
        for method, options in self._plans.candidates().items():
            rates = {}
            for plan in options:
                # Only the rate after the prompt counts, so the caches keep a long prompt.
                rates[plan] = rate(self._write([text], FixedPlan(plan), f"{kind}: choosing, {plan}", keep_caches=True))
            plans[method] = max(rates, key=lambda plan: rates[plan])
            predicted[method] = rates[plans[method]]
        return plans, predicted

    def _measure(
        self, kind: str, texts: Sequence[list[int]], plans: dict[str, Plan], predicted: dict[str, float]
    ) -> list[Row]:
        settings = self._settings
        temperature = settings.sampling.temperature
        choosers = {name: Foretold(self._model.plans.fixed(plan, temperature)) for name, plan in plans.items()}
        if AUTO_ROW in settings.methods:  # without a draft model, it has the draft sources
            choosers[AUTO_ROW] = Foretold(self._model.plans.auto(temperature))
        samples: dict[str, list[list[Statistics]]] = {name: [] for name in choosers}
        memory: dict[str, int] = {}
        for repetition in range(settings.repetitions):
            for name, chooser in choosers.items():
                label = f"{kind}: {name}, {repetition + 1} of {settings.repetitions}"
                samples[name].append(self._write(texts, chooser, label))
                memory[name] = psutil.Process().memory_info().rss
        rows = []
        for name, chooser in choosers.items():
            expected = chooser.tokens_per_second or predicted.get(name)
            measured = samples[name], samples[OFF_ROW], expected, memory[name]
            rows.append(summarise(name, str(chooser), kind, *measured, chooser.plan()))
        return rows

    def _write(
        self, texts: Sequence[list[int]], plans: PlanChooser, label: str, keep_caches: bool = False
    ) -> list[Statistics]:
        """Write after each of `texts`. label: shown meanwhile."""
        runs: list[Statistics] = []
        for text in texts:
            if self._n_written == 1:  # the first text, which also warms up, says little about the others
                size = counted(self._settings.max_tokens, "token")
                self._run = self._run.work(f"{self._n_expected} answers of {size}, plainly and with each plan in turn")
            self._run.done(max(self._n_written - 1, 0) / (self._n_expected - 1)).show(label)
            # All rows write the same text, which draft sources would otherwise remember from the rows before.
            self._model.forget(keep_caches)
            request = Request(text, self._settings.sampling, self._settings.max_tokens, ignore_eos=True)
            generation = Generation(self._model.engine, request, plans)
            for _ in write_alone(generation):
                pass
            runs.append(generation.statistics)
            self._n_written += 1
        return runs


@dataclass
class Foretold:
    """A chooser with what its guide expected of its passes: tokens by the calibrated chances of the trees' nodes, and
    milliseconds by the times that are known of target and draft passes.

    A pass counts before anything is learned of it, so this is a forecast, made again for each pass.
    """

    chooser: PlanChooser
    tokens: float = 0.0
    ms: float = 0.0

    @property
    def tokens_per_second(self) -> float | None:
        """None if no pass was foretold: there is no guide, it does not know yet what a plain pass takes, or trees have
        no probabilities of the draft, as chains have none.
        """
        return None if not self.ms or math.isnan(self.tokens) else 1e3 * self.tokens / self.ms

    @property
    def guide(self) -> Guide | None:
        return self.chooser.guide

    @property
    def needs_draft(self) -> bool:
        return self.chooser.needs_draft

    def plan(self, n_texts: int = 1) -> Plan:
        return self.chooser.plan(n_texts)

    def read_prompt(self, n_tokens: int, seconds: float, n_unread: int) -> None:
        self.chooser.read_prompt(n_tokens, seconds, n_unread)

    def record(self, record: PassRecord) -> None:
        if (guide := self.guide) and guide.knows_plain:
            tree, plan = record.tree, self.plan()
            # Scores are chances where the tree was grown by them. Draft sources have no others.
            by_score = plan.can_shrink or len(tree) == 1
            self.tokens += float(np.exp(tree.scores).sum()) if by_score else expected_tokens(guide.calibration, tree)
            self.ms += guide.costs.target.ms(record.n_target, record.ctx) + guide.drafting_ms(record)
        self.chooser.record(record)

    def __str__(self) -> str:
        return str(self.chooser)


def expected_tokens(calibration: Calibration, tree: TokenTree) -> float:
    """Tokens that a pass over a tree of the draft model's candidates is expected to commit, its root's included."""
    reached = np.ones(len(tree))
    for node, children in enumerate(tree.children):
        ranked = sorted(children, key=lambda child: -tree.probabilities[child])
        if ranked:
            chances = calibration.chances(int(tree.depths[node]) + 1, tree.probabilities[ranked])
            reached[ranked] = reached[node] * chances
    return float(reached.sum())
