"""Runs the rows of a benchmark in turn, so that a change of the machine's speed affects all of them alike."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import psutil

from specrun.bench.bench_prompts import BenchPrompt
from specrun.bench.rows import Row, Sample, summarise
from specrun.catalog.heads import article
from specrun.engine import growth_maps
from specrun.engine.model import Model
from specrun.engine.overlap import why_no_overlap
from specrun.engine.request import Request
from specrun.engine.statistics import Statistics
from specrun.errors import PromptError
from specrun.llama import AnyHead
from specrun.long_run import Run
from specrun.sampling import SamplingParameters
from specrun.speculation.controllers.chooser import FixedPlan, PlanChooser
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import ACCEPTANCE, DATASTORE, DRAFT, HEADS, OFF, PROFILE, Method
from specrun.speculation.plan import Plan
from specrun.speculation.registry import ALIASES, METHODS
from specrun.speculation.shape import TreeShape

# Sizes among which the best chain and the best tree are chosen: depths, and (budget, depth).
CHAIN_DEPTHS = (2, 3, 4, 6, 8, 12, 16)
TREE_SIZES = ((4, 2), (8, 4), (16, 6), (24, 8), (32, 8), (32, 12), (48, 10), (64, 12))
_DEEP = 16  # least depth for a method that ends its trees by itself
SWEEP_BUDGETS = (4, 8, 16, 24, 32, 48, 64)
SWEEP_DEPTHS = (2, 4, 6, 8, 12, 16)

# Names of rows: "chain" and "tree" are of the best size, "auto" is what runs without options.
OFF_ROW, CHAIN_ROW, TREE_ROW, AUTO_ROW = "off", "chain", "tree", "auto"
ROWS = (OFF_ROW, CHAIN_ROW, TREE_ROW, AUTO_ROW)
ALL = (*METHODS, AUTO_ROW)
OVERLAP = "+overlap"  # ends the name of a row that drafts while the target's passes run
OVERLAPPED = tuple(name + OVERLAP for name, method in METHODS.items() if method.can_overlap)


@dataclass(frozen=True)
class BenchSettings:
    """What to measure."""

    sampling: SamplingParameters
    max_tokens: int  # tokens of every answer; text goes on past its end, so that all rows write the same count
    repetitions: int
    methods: tuple[str, ...] = ROWS  # names of rows beside `off`
    budgets: tuple[int, ...] = SWEEP_BUDGETS  # of the grid
    depths: tuple[int, ...] = SWEEP_DEPTHS  # of the grid
    growth_map: TreeShape | None = None  # the shape of trees that have the same one in every pass
    raw: bool = False  # continue the prompts as they are, without the chat template


class Bench:
    """A pair under measurement. All rows share the contexts; the KV caches are emptied before every text."""

    def __init__(self, model: Model, settings: BenchSettings, run: Run) -> None:
        self._model = model
        self._settings = settings
        self._run = run
        self._is_one_path = model.engine.target.max_leaves == 1 and model.llama_model.is_recurrent
        self._started = time.perf_counter()
        self._n_expected = self._n_written = 0  # texts

    def run(self, prompts: Sequence[BenchPrompt]) -> list[Row]:
        """Choose the best chain and tree on the first prompt of each kind, then measure every row on all the others.

        A kind with a single prompt is measured on that one. The runs that choose are the warm-up.
        """
        rows: list[Row] = []
        fitting = self._fitting(prompts)
        self._expect(fitting, self._n_rows(), 1 + sum(map(len, self._candidates().values())))
        for kind, texts in fitting.items():
            plans, predicted = self._select(kind, texts[0])
            plans |= self._named(plans)
            rows += self._measure(kind, texts[1:] or texts, plans, predicted)
        return rows

    def sweep(self, prompts: Sequence[BenchPrompt]) -> list[Row]:
        """Measure the rows' methods at every budget and depth of the grid, and `auto`, on all prompts of each kind."""
        grid: dict[str, Plan] = {OFF_ROW: OFF.plan()}
        for name, method in self._runnable().items():
            grid |= self._finished(self._sizes(name, method))
        rows: list[Row] = []
        fitting = self._fitting(prompts)
        tuned = self._model.plans.predicted(self._settings.sampling.temperature)
        predicted = {AUTO_ROW: tuned} if tuned is not None else {}
        self._expect(fitting, len(grid) + (AUTO_ROW in self._settings.methods), 1, sweeps=True)
        for kind, texts in fitting.items():
            self._write(texts[:1], FixedPlan(OFF.plan()))
            rows += self._measure(kind, texts, grid, predicted, keep_all=True)
        return rows

    def _expect(self, fitting: dict[str, list[list[int]]], n_rows: int, n_tried: int, sweeps: bool = False) -> None:
        """Begin to count texts. n_rows: rows of each kind; n_tried: texts of each kind that are written before them."""
        measured = sum(len(texts if sweeps else texts[1:] or texts) for texts in fitting.values())
        self._n_expected = n_tried * len(fitting) + n_rows * self._settings.repetitions * measured
        self._started, self._n_written = time.perf_counter(), 0

    def _n_rows(self) -> int:
        """Rows of the result for each kind, plain decoding included."""
        methods = [method for name in self._settings.methods if (method := _method(name)) and method is not OFF]
        return 1 + sum(not self._lacking(method) for method in methods) + (AUTO_ROW in self._settings.methods)

    def _show(self, text: str) -> None:
        """Show what is being done, and about how long the rest takes by the texts that are written already."""
        run = self._run
        if self._n_written:
            seconds = (time.perf_counter() - self._started) / self._n_written
            run = run.expected_to_take(seconds * (self._n_expected - self._n_written))
        run.show(text)

    def _sizes(self, name: str, method: Method) -> dict[str, Plan]:
        """The plans of a method at every size of the grid, by the names of their rows."""
        if method.wants_shape and self._settings.growth_map:
            return {name: method.plan().shaped(self._settings.growth_map)}
        if method.is_chain:
            return {f"{name} {depth}": method.plan(depth=depth) for depth in self._settings.depths}
        sizes = [
            (b, d) for b in self._settings.budgets for d in dict.fromkeys(min(d, b - 1) for d in self._settings.depths)
        ]
        return {f"{name} {budget} x {depth}": method.plan(budget, depth) for budget, depth in sizes}

    def _fitting(self, prompts: Sequence[BenchPrompt]) -> dict[str, list[list[int]]]:
        """Token ids of the prompts whose answers fit the context, by kind. Raises PromptError if there are none."""
        fitting: dict[str, list[list[int]]] = {}
        room = self._model.engine.ctx_size - self._settings.max_tokens
        n_too_long = 0
        for prompt in prompts:
            tokens = self._model.prompt_tokens(prompt.text, self._settings.raw)
            if len(tokens) <= room:
                fitting.setdefault(prompt.kind, []).append(tokens)
            else:
                n_too_long += 1
        what = f"with {self._settings.max_tokens} more tokens beyond the context of {self._model.engine.ctx_size}"
        if not fitting:
            raise PromptError(f"all prompts are {what}; give a larger --ctx-size")
        if n_too_long:
            self._run.note(f"left out {n_too_long} of {len(prompts)} prompts: they are {what}")
        return fitting

    def _select(self, kind: str, text: list[int]) -> tuple[dict[str, Plan], dict[str, float]]:
        """The best plans and their rates on `text`, in tokens per second, both by row; for `auto` a rate only."""
        self._write([text], FixedPlan(OFF.plan()))
        plans: dict[str, Plan] = {}
        predicted: dict[str, float] = {}
        for method, options in self._candidates().items():
            rates = {}
            for plan in options:
                self._show(f"{kind}: choosing, {plan}")
                # Only the rate behind the prompt counts, so the caches keep a long prompt.
                rates[plan] = self._write([text], FixedPlan(plan), keep_caches=True).rate
            plans[method] = max(rates, key=lambda plan: rates[plan])
            predicted[method] = rates[plans[method]]
        tuned = self._model.plans.predicted(self._settings.sampling.temperature)
        predicted[AUTO_ROW] = max(predicted.values()) if tuned is None else tuned
        return plans, predicted

    def _candidates(self) -> dict[str, list[Plan]]:
        """The plans among which the best chain and the best tree are chosen, and plain decoding, by row."""
        candidates: dict[str, list[Plan]] = {OFF_ROW: [OFF.plan()]}
        wanted = set(self._settings.methods)
        tuned = self._model.plans.predicted(self._settings.sampling.temperature)
        if (AUTO_ROW in wanted and tuned is None) or any(_sized_by_the_best(name) for name in wanted):
            wanted |= {CHAIN_ROW, TREE_ROW}  # without a profile, `auto` is expected to reach the best rate
        if self._model.engine.draft and CHAIN_ROW in wanted:
            candidates[CHAIN_ROW] = [CHAIN.plan(depth=depth) for depth in CHAIN_DEPTHS]
        if self._model.engine.draft and TREE_ROW in wanted and not self._is_one_path:
            candidates[TREE_ROW] = [SPECEXEC.plan(budget, depth) for budget, depth in TREE_SIZES]
        return candidates

    def _named(self, best: dict[str, Plan]) -> dict[str, Plan]:
        """The plans of the other rows."""
        runnable = {name: method for name, method in self._runnable().items() if name not in best}
        return self._finished({name: self._sized(method, best) for name, method in runnable.items()})

    def _runnable(self) -> dict[str, Method]:
        """The methods of the rows. Rows whose method needs something that this run does not have are left out."""
        runnable: dict[str, Method] = {}
        for name in self._settings.methods:
            method = _method(name)
            if method is None or method is OFF:
                continue
            if lacking := self._lacking(method):
                self._run.note(f"left out {name}: it needs {lacking}")
            elif OVERLAP in name and self._model.engine.overlap is None:
                self._run.note(f"left out {name}: {why_no_overlap(self._model.engine.draft)}")
            else:
                runnable[name] = method
        return runnable

    def _finished(self, plans: dict[str, Plan]) -> dict[str, Plan]:
        """The plans by row, with the tree shapes that some lack, and with overlap in the rows that ask for it."""
        if self._is_one_path:
            plans = {name: plan.on_one_path() for name, plan in plans.items()}
        shaped = self._model.plans.shaped(list(plans.values()), self._settings.sampling.temperature)
        return {name: replace(plan, overlap=OVERLAP in name) for name, plan in zip(plans, shaped, strict=True)}

    def _sized(self, method: Method, best: dict[str, Plan]) -> Plan:
        """A plan of the method as large as the best chain or tree, or of the profile's size if it is adaptive."""
        if method.wants_shape and self._settings.growth_map:
            return method.plan().shaped(self._settings.growth_map)
        if method in (CHAIN, SPECEXEC):
            return best[CHAIN_ROW if method is CHAIN else TREE_ROW]
        profile = self._model.plans.profile
        if method.is_adaptive and profile:
            return growth_maps.by_profile(method.plan(), profile, self._settings.sampling.temperature, is_open=True)
        usual = CHAIN.plan(depth=4) if method.is_chain else SPECEXEC.plan(16, 8)
        size = best.get(CHAIN_ROW if method.is_chain else TREE_ROW, usual)
        depth = max(size.depth, _DEEP) if method.stops else size.depth
        return method.plan(max(size.budget, depth + 1) if method.is_chain else size.budget, depth)

    def _lacking(self, method: Method) -> str:
        """The first thing that the method needs and this run does not have; empty if it has all."""
        if self._is_one_path and method.kind == "tree":
            return "passes that check trees, and a pass over a model with recurrent layers checks one path"
        draft = self._model.engine.draft
        head = draft.kind if isinstance(draft, AnyHead) else None
        has = {
            DRAFT: draft is not None,
            **{name: head == kind for kind, name in HEADS.items()},
            ACCEPTANCE: True,
            PROFILE: self._model.plans.profile is not None,
            DATASTORE: self._model.has_datastore,
        }
        advice = {PROFILE: " of this pair (`specrun tune`)", DATASTORE: " (`specrun datastore`)"}
        articles = {name: article(kind) for kind, name in HEADS.items()}
        lacking = (need for need in method.needs if not has[need])
        return next((f"{articles.get(need, 'a')} {need}{advice.get(need, '')}" for need in lacking), "")

    def _measure(
        self,
        kind: str,
        texts: Sequence[list[int]],
        plans: dict[str, Plan],
        predicted: dict[str, float],
        keep_all: bool = False,
    ) -> list[Row]:
        choosers: dict[str, PlanChooser] = {
            name: self._model.plans.fixed(plan, self._settings.sampling.temperature)
            for name, plan in plans.items()
            if keep_all or name == OFF_ROW or name in self._settings.methods
        }
        if AUTO_ROW in self._settings.methods:  # without a draft model, it has the draft sources
            choosers[AUTO_ROW] = self._model.plans.auto()
        samples: dict[str, list[Sample]] = {name: [] for name in choosers}
        memory: dict[str, int] = {}
        for repetition in range(self._settings.repetitions):
            for name, chooser in choosers.items():
                self._show(f"{kind}: {name}, {repetition + 1} of {self._settings.repetitions}")
                samples[name].append(self._write(texts, chooser))
                memory[name] = psutil.Process().memory_info().rss
        rows = []
        for name, chooser in choosers.items():
            of_row = samples[name], samples[OFF_ROW], predicted.get(name), memory[name], chooser.current
            rows.append(summarise(name, str(chooser), kind, *of_row))
        return rows

    def _write(self, texts: Sequence[list[int]], plans: PlanChooser, keep_caches: bool = False) -> Sample:
        runs: list[Statistics] = []
        for text in texts:
            # All rows write the same text, which draft sources would otherwise remember from the rows before.
            self._model.forget(keep_caches)
            request = Request(text, self._settings.sampling, self._settings.max_tokens, ignore_eos=True)
            generation = self._model.engine.generate(request, plans)
            for _ in generation:
                pass
            runs.append(generation.statistics)
            self._n_written += 1
        return Sample.of(runs)


def _method(name: str) -> Method | None:
    """The method that a row names; None for `auto`."""
    plain = name.removesuffix(OVERLAP)
    return METHODS.get(ALIASES.get(plain, plain))


def takes_growth_map(name: str) -> bool:
    """Whether the row's trees all have one shape, which a growth map can give."""
    method = _method(name)
    return method is not None and method.wants_shape


def _sized_by_the_best(name: str) -> bool:
    """Whether the row's plan is as large as the best chain or tree, which then has to be chosen first."""
    method = _method(name)
    return method is not None and method.needs_draft and not method.is_adaptive and name not in ROWS
