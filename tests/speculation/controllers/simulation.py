"""Runs of a controller on simulated texts and machines: trees are drafted as in use, seconds come from tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from specrun.sampling import CandidateRows, Candidates
from specrun.speculation.accept import Accepted
from specrun.speculation.controllers.chooser import FixedPlan, PlanChooser
from specrun.speculation.drafter import Draft, DraftLimits
from specrun.speculation.growth import TreeGrowth
from specrun.speculation.method import Drafting, Plan
from specrun.speculation.planning.costs import CostModel, CostTable, PassTime
from specrun.speculation.planning.guide import Guide, PassRecord, RunCosts
from specrun.speculation.tree import ROOT, TokenTree

N_RANKS = 16
_LEVEL_MS = 2.0  # of a draft pass
_QUIET = 0.5  # share of what Python does in a pass that drafts, where the draft sources have no guess


@dataclass(frozen=True)
class Machine:
    """The milliseconds of a pass by its tokens, of a draft pass, of what Python does in a pass that drafts, and of the
    draft's reading a token that it has not seen.
    """

    target: Mapping[int, float]
    level: float = _LEVEL_MS
    python: float = 0.3
    reading: float = 0.0

    def ms(self, n: int) -> float:
        sizes = sorted(self.target)
        if n > sizes[-1]:
            low, high = sizes[-2:]
            slope = (self.target[high] - self.target[low]) / (high - low)
            return self.target[high] + slope * (n - high)
        return float(np.interp(n, sizes, [self.target[size] for size in sizes]))

    @property
    def costs(self) -> CostModel:
        """The tables that `specrun tune` would measure."""
        sizes = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128)
        levels = [PassTime(1, 64, self.level), PassTime(16, 64, self.level)]
        return CostModel(CostTable([PassTime(n, 64, self.ms(n)) for n in sizes]), CostTable(levels))


@dataclass
class Text:
    """What the target writes, and what draft and sources say of it.

    ranks: int[n], the rank with the draft of the target's token at each position; it is the token's id too.
    shares: float64[n, N_RANKS], the draft's probabilities there.
    is_copied: bool[n], where the draft sources know the next token.
    certainty: the chance that they give their guesses, which are right.
    """

    ranks: np.ndarray
    shares: np.ndarray
    is_copied: np.ndarray
    certainty: float = 0.9

    def then(self, other: Text) -> Text:
        return Text(*(np.concatenate(both) for both in zip(self.parts, other.parts, strict=True)))

    @property
    def parts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.ranks, self.shares, self.is_copied


def text(n: int, agreement: float, seed: int, copied: float = 0.0) -> Text:
    """A text whose tokens are the draft's first choice with this mean chance, which the draft knows from its shares."""
    rng = np.random.default_rng(seed)
    n += 300  # a run may look ahead
    confidence = rng.beta(1.5 * agreement, 1.5 * (1 - agreement), n)
    rest = 0.5 ** np.arange(1, N_RANKS)
    shares = np.concatenate([confidence[:, None], (1 - confidence)[:, None] * rest], axis=1)
    ranks = np.array([rng.choice(N_RANKS + 1, p=np.append(row, max(1 - row.sum(), 0))) for row in shares])
    runs = np.repeat(rng.random(n // 32 + 1) < copied, 32)[:n]
    return Text(ranks, shares, runs)


def useless(n: int, seed: int) -> Text:
    """A text of which the draft is sure and always wrong."""
    made = text(n, 0.6, seed)
    return Text(np.full_like(made.ranks, N_RANKS), made.shares, made.is_copied)


@dataclass
class _Source:
    """The draft's candidates, and the sources' guesses, after the first `place` tokens of a text."""

    text: Text
    place: int
    passes: list[int] = field(default_factory=list)

    def _at(self, path: Sequence[int]) -> tuple[int, bool]:
        here = self.place + len(path)
        return here, list(path) == self.text.ranks[self.place : here].tolist()

    @property
    def model(self) -> _Source:
        return self

    def expandable(self, parents: Sequence[int], width: int) -> Sequence[int]:
        return range(min(len(parents), width))

    def candidates(self, growth: TreeGrowth, nodes: Sequence[int]) -> CandidateRows:
        self.passes.append(len(nodes))
        found = []
        for node in nodes:
            here, is_right = self._at(growth.path(node))
            shares = self.text.shares[here if is_right else here + 100]
            order = np.argsort(-shares, kind="stable")
            found.append(Candidates(order, np.log(np.maximum(shares[order], 1e-12))))
        return CandidateRows.of(found)

    def favourite(self, growth: TreeGrowth, node: int) -> int:
        return int(self.candidates(growth, [node])[0].tokens[0])


class _Draft(_Source):
    def children(self, growth: TreeGrowth, nodes: Sequence[int]) -> CandidateRows:
        return self.candidates(growth, nodes)


class _Guesses(_Source):
    def children(self, path: Sequence[int], count: int) -> list[tuple[int, float]]:
        here, is_right = self._at(path)
        knows = is_right and self.text.is_copied[here]
        return [(int(self.text.ranks[here]), self.text.certainty)][:count] if knows else []

    def behind(self, path: Sequence[int]) -> _Guesses:
        return _Guesses(self.text, self.place + len(path))


@dataclass
class Run:
    """What a run brought: seconds by number of committed tokens, and the plan and tree size of every pass."""

    n_tokens: int = 0
    seconds: float = 0.0
    plans: list[Plan] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.n_tokens / self.seconds

    def share_of(self, method: str) -> float:
        """The share of passes by plans of this method."""
        return sum(plan.method.name == method for plan in self.plans) / len(self.plans)


def run(
    plans: PlanChooser,
    of: Text,
    machine: Machine,
    n_tokens: int,
    prompt: int = 100,
    place: int = 0,
    *,
    is_cached: bool = False,
) -> Run:
    """Write `n_tokens` tokens of the text from `place` on, after a prompt of so many tokens.

    is_cached: whether the target has the prompt in its cache, and the draft has not.
    """
    done = Run()
    n_read = 0 if is_cached else prompt
    plans.read_prompt(n_read, machine.ms(n_read) / 1e3 if n_read else 0.0, prompt)
    unread = 0 if plans.needs_draft else prompt
    done.seconds = (prompt - unread) * machine.reading / 1e3
    while done.n_tokens < n_tokens:
        plan = plans.plan()
        record = _pass(plan, plans.guide, of, place, prompt + place, machine, unread)
        unread = 0 if plan.method.needs_draft else unread + record.n_tokens
        plans.record(record)
        done.plans.append(plan)
        done.sizes.append(len(record.tree))
        done.seconds += record.seconds
        done.n_tokens += record.n_tokens
        place += record.n_tokens
    return done


def _pass(plan: Plan, guide: Guide | None, of: Text, place: int, ctx: int, machine: Machine, unread: int) -> PassRecord:
    """unread: tokens of the text that the draft reads first if it is asked."""
    source = _Draft(of, place)
    guesses = _Guesses(of, place) if plan.method.sources else None
    drafter = Drafting(plan, 0.0, source, guide, guesses).drafter()
    draft = Draft(TokenTree.root_only(ROOT))
    if drafter:
        draft = drafter.draft([ROOT] * ctx, DraftLimits(plan.budget, plan.depth, plan.width, 256))
    tree = draft.tree
    path, tokens = [ROOT], []
    while len(tokens) < len(path):
        token = int(of.ranks[place + len(tokens)])
        tokens.append(token)
        child = tree.child_with_token(path[-1], token)
        if child is not None:
            path.append(child)
    target, drafting = machine.ms(len(tree)), machine.level * len(source.passes)
    drafting += machine.reading * unread if source.passes else 0.0
    python = machine.python if len(tree) > 1 or source.passes else machine.python * _QUIET
    whole = target + drafting + (python if plan.drafts else 0.0)
    return PassRecord(draft, Accepted(path, tokens), whole / 1e3, target / 1e3, drafting / 1e3, len(tree), ctx)


def best_fixed(plans: Sequence[Plan], of: Text, machine: Machine, n_tokens: int) -> tuple[Plan, float]:
    """The plan that writes the text fastest when all passes follow it, with the machine's true tables; and its rate."""
    rates = {}
    for plan in plans:
        guide = Guide(RunCosts.of(machine.costs), rate=1 / machine.ms(1))
        rates[plan] = run(FixedPlan(plan, guide), of, machine, n_tokens).rate
    best = max(rates, key=lambda plan: rates[plan])
    return best, rates[best]
