"""What a benchmark measures: its settings, the rows that it has for a pair, with their plans, and what one plan did on
one kind of text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from statistics import mean, median
from typing import Any

from specrun.catalog.heads import article
from specrun.decoding import tree_shapes
from specrun.decoding.statistics import Statistics
from specrun.llama import AnyHead
from specrun.loading.model import Model
from specrun.sampling import SamplingParameters
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import ACCEPTANCE, DRAFT, HEADS, OFF, PROFILE, Method, Plan
from specrun.speculation.registry import ALIASES, METHODS


@dataclass(frozen=True)
class Row:
    """A line of the result: what one plan did on one kind of text. Rates are medians over the repetitions."""

    method: str  # the name of the row: a method, `chain` or `tree` of the best size, or `auto`
    plan: str
    kind: str  # the kind of text
    tokens_per_second: float
    tokens_per_second_min: float
    tokens_per_second_max: float
    ratio: float  # of the rate to plain decoding's; median over the ratios of the repetitions
    tokens_per_pass: float
    # What was expected of each pass before it was made (`Foretold`), where the times of passes are known; else the rate
    # on the text that the plan was chosen on, and None if it was not chosen.
    predicted_tokens_per_second: float | None
    first_token_seconds: float  # from the beginning of the prompt to the first token; mean over the prompts
    memory_bytes: int  # resident memory of the process at the end of the row, mapped weights included
    tokens: int  # written in each repetition
    repetitions: int
    budget: int  # nodes of the plan's trees; for `auto`, of the plan that it followed at the end
    depth: int  # drafted tokens on a path of that plan
    accepted_lengths: list[int]  # passes by accepted length, from 1 on
    acceptance_by_depth: list[float]  # of the passes offered nodes at a depth, the share that accepted one; from 1 on
    target_ms: float  # milliseconds of the mean target pass
    draft_ms: float  # milliseconds of drafting before the mean target pass, without drafting during the pass

    def as_json(self) -> dict[str, Any]:
        """The row as JSON values, rounded to 4 decimals."""
        values = {key: round(value, 4) if isinstance(value, float) else value for key, value in asdict(self).items()}
        return values | {"acceptance_by_depth": [round(share, 4) for share in self.acceptance_by_depth]}


def summarise(
    method: str,
    plan: str,
    kind: str,
    samples: Sequence[Sequence[Statistics]],
    plain: Sequence[Sequence[Statistics]],
    predicted: float | None,
    memory_bytes: int,
    followed: Plan,
) -> Row:
    """One row from its repetitions and those of plain decoding, in the same order.

    samples, plain: for each repetition, the statistics of the answers to all prompts.
    followed: the plan of the last pass. The other arguments are fields of `Row`.
    """
    rates, plain_rates = list(map(rate, samples)), list(map(rate, plain))
    runs = [run for repetition in samples for run in repetition]
    passes = sum(run.passes for run in runs)
    by_depth = _added(run.matched for run in runs), _added(run.offered for run in runs)
    return Row(
        method=method,
        plan=plan,
        kind=kind,
        tokens_per_second=median(rates),
        tokens_per_second_min=min(rates),
        tokens_per_second_max=max(rates),
        ratio=median(own / other if other else 0.0 for own, other in zip(rates, plain_rates, strict=True)),
        tokens_per_pass=sum(run.completion_tokens for run in runs) / passes if passes else 0.0,
        predicted_tokens_per_second=predicted,
        first_token_seconds=median(mean(run.first_token_seconds for run in repetition) for repetition in samples),
        memory_bytes=memory_bytes,
        tokens=sum(run.completion_tokens for run in samples[0]),
        repetitions=len(samples),
        budget=followed.budget,
        depth=followed.depth,
        accepted_lengths=_added(run.accepted for run in runs),
        acceptance_by_depth=[matched / offered for matched, offered in zip(*by_depth, strict=True) if offered],
        target_ms=1e3 * sum(run.target_seconds for run in runs) / max(passes, 1),
        draft_ms=1e3 * sum(run.draft_seconds for run in runs) / max(passes, 1),
    )


def rate(runs: Sequence[Statistics]) -> float:
    """Tokens per second over several answers, without the time of their prompts."""
    seconds = sum(run.seconds for run in runs)
    return sum(run.completion_tokens for run in runs) / seconds if seconds else 0.0


def _added(counts: Iterable[Sequence[int]]) -> list[int]:
    """The sums over lists of counts, place by place; shorter lists end in zeros."""
    return [sum(column) for column in zip_longest(*counts, fillvalue=0)]


# Sizes among which the best chain and the best tree are chosen: depths, and (budget, depth).
CHAIN_DEPTHS = (2, 3, 4, 6, 8, 12, 16)
TREE_SIZES = ((4, 2), (8, 4), (16, 6), (24, 8), (32, 8), (32, 12), (48, 10), (64, 12))
SWEEP_BUDGETS = (4, 8, 16, 24, 32, 48, 64)
SWEEP_DEPTHS = (2, 4, 6, 8, 12, 16)

_DEEP = 16  # least depth for a method that ends its trees by itself

# Names of rows: "chain" and "tree" have the best size, "auto" is what runs without options.
OFF_ROW, CHAIN_ROW, TREE_ROW, AUTO_ROW = "off", "chain", "tree", "auto"
ROWS = (OFF_ROW, CHAIN_ROW, TREE_ROW, AUTO_ROW)
ALL = (*METHODS, AUTO_ROW)
NAMES = tuple(dict.fromkeys((*ROWS, *ALL)))


@dataclass(frozen=True)
class BenchSettings:
    """What to measure."""

    sampling: SamplingParameters
    max_tokens: int  # tokens of every answer; text goes on past its end, so that all rows write the same count
    repetitions: int
    methods: tuple[str, ...] = ROWS  # names of rows beside `off`
    budgets: tuple[int, ...] = SWEEP_BUDGETS  # of the grid
    depths: tuple[int, ...] = SWEEP_DEPTHS  # of the grid
    raw: bool = False  # continue the prompts as they are, without the chat template

    def largest_plan(self, is_sweep: bool) -> Plan:
        """The plan for whose trees the contexts must have room."""
        sizes = [*self.budgets, *(d + 1 for d in self.depths)] if is_sweep else [budget for budget, _ in TREE_SIZES]
        return SPECEXEC.plan(max(sizes), 16)


class RowPlans:
    """The plans of the rows that `settings` ask for. `auto` has no plan of its own: it follows several.

    note: called with a sentence for each row that is left out.
    """

    def __init__(self, model: Model, settings: BenchSettings, note: Callable[[str], None]) -> None:
        self._model = model
        self._settings = settings
        self._note = note
        self._is_one_path = model.engine.target.max_leaves == 1 and model.llama_model.is_recurrent
        self._runnable: dict[str, Method] = {}  # by the names of their rows, without what this run cannot have
        for name in settings.methods:
            method = method_of(name)
            if method is None or method is OFF:
                continue
            if lacking := self._lacking(method):
                self._note(f"left out {name}: it needs {lacking}")
            else:
                self._runnable[name] = method

    @property
    def n_rows(self) -> int:
        """Rows of the result for each kind, plain decoding included."""
        return 1 + len(self._runnable) + (AUTO_ROW in self._settings.methods)

    def candidates(self) -> dict[str, list[Plan]]:
        """The plans among which the best chain and the best tree are chosen, and plain decoding, by row."""
        candidates: dict[str, list[Plan]] = {OFF_ROW: [OFF.plan()]}
        wanted = set(self._settings.methods)
        others = (method for name in wanted - set(ROWS) if (method := method_of(name)))
        if any(method.needs_draft and not method.is_adaptive for method in others):  # as large as the best of these
            wanted |= {CHAIN_ROW, TREE_ROW}
        if self._model.engine.draft and CHAIN_ROW in wanted:
            candidates[CHAIN_ROW] = [CHAIN.plan(depth=depth) for depth in CHAIN_DEPTHS]
        if self._model.engine.draft and TREE_ROW in wanted and not self._is_one_path:
            candidates[TREE_ROW] = [SPECEXEC.plan(budget, depth) for budget, depth in TREE_SIZES]
        return candidates

    def named(self, best: dict[str, Plan]) -> dict[str, Plan]:
        """The plans of the other rows. best: those of the best chain and the best tree, by row."""
        others = {name: method for name, method in self._runnable.items() if name not in best}
        return self._finished({name: self._sized(method, best) for name, method in others.items()})

    def grid(self) -> dict[str, Plan]:
        """Plain decoding, and the methods of the rows at every budget and depth of the grid, by row."""
        plans, settings = {OFF_ROW: OFF.plan()}, self._settings
        trees = {(budget, min(depth, budget - 1)) for budget in settings.budgets for depth in settings.depths}
        for name, method in self._runnable.items():
            if method.is_chain:
                sizes = {f"{name} {depth}": method.plan(depth=depth) for depth in settings.depths}
            else:
                sizes = {f"{name} {size} x {depth}": method.plan(size, depth) for size, depth in sorted(trees)}
            plans |= self._finished(sizes)
        return plans

    def _finished(self, plans: dict[str, Plan]) -> dict[str, Plan]:
        """The plans by row, with the tree shapes that some lack."""
        if self._is_one_path:
            plans = {name: plan.on_one_path() for name, plan in plans.items()}
        shaped = self._model.plans.shaped(list(plans.values()), self._settings.sampling.temperature)
        return dict(zip(plans, shaped, strict=True))

    def _sized(self, method: Method, best: dict[str, Plan]) -> Plan:
        """A plan of the method as large as the best chain or tree, or of the profile's size if it is adaptive."""
        if method in (CHAIN, SPECEXEC):
            return best[CHAIN_ROW if method is CHAIN else TREE_ROW]
        profile = self._model.plans.profile
        if method.is_adaptive and profile:
            return tree_shapes.by_profile(method.plan(), profile, self._settings.sampling.temperature, is_open=True)
        row, usual = (CHAIN_ROW, CHAIN.plan(depth=4)) if method.is_chain else (TREE_ROW, SPECEXEC.plan(16, 8))
        size = best.get(row, usual)
        depth = max(size.depth, _DEEP) if method.stops else size.depth
        return method.plan(max(size.budget, depth + 1) if method.is_chain else size.budget, depth)

    def _lacking(self, method: Method) -> str:
        """The first thing that the method needs and this run does not have; empty if nothing is missing."""
        if self._is_one_path and method.kind == "tree":
            return "passes that check trees, and a pass over a model with recurrent layers checks one path"
        draft = self._model.engine.draft
        head = draft.kind if isinstance(draft, AnyHead) else None
        has = {
            DRAFT: draft is not None,
            **{name: head == kind for kind, name in HEADS.items()},
            ACCEPTANCE: True,
            PROFILE: self._model.plans.profile is not None,
        }
        advice = {PROFILE: " of this pair (`specrun tune`)"}
        articles = {name: article(kind) for kind, name in HEADS.items()}
        lacking = (need for need in method.needs if not has[need])
        return next((f"{articles.get(need, 'a')} {need}{advice.get(need, '')}" for need in lacking), "")


def method_of(row: str) -> Method | None:
    """The method that a row names; None for `auto`."""
    return METHODS.get(ALIASES.get(row, row))
