"""Drafting while the target's pass runs, for the likeliest outcomes of that pass (PEARL, arXiv 2408.11850).

Where the target waits for a disk, a bus or another device, the CPU is free to draft. If the pass ends with one of the
expected outcomes, its tree is ready and the next pass begins at once. Trees affect only the speed, so the text does not
depend on how many of them are drafted in time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from specrun import interrupts
from specrun.llama import AnyDraft, AnyHead, DraftContext, RecurrentDraft, TargetContext
from specrun.llama.context import Logits
from specrun.sampling import Candidates
from specrun.speculation.drafter import Draft, DraftLimits, DraftModel, DraftNode, GuessesBehind
from specrun.speculation.growth import ModelCandidates, TreeGrowth
from specrun.speculation.method import OFF, Drafting, Plan
from specrun.speculation.tree import ROOT, TokenTree, n_in_order

LEAST_CHANCE = 0.005  # least chance of an outcome that is drafted for; chosen by hand, as few passes last longer

# Drafted tokens after the root -> the draft's candidates for the token after them.
NextTokens = Callable[[Sequence[int]], Candidates]


def why_no_overlap(draft: AnyDraft | None) -> str | None:
    """Why this draft drafts nothing while a pass of the target runs; None where it can."""
    if isinstance(draft, AnyHead):
        return f"{draft.context.model.name} drafts from the hidden states that the pass gives"
    if isinstance(draft, RecurrentDraft):
        return f"{draft.context.model.name} has recurrent layers, and drafts for one text"
    return None if draft else "there is no draft model"


@dataclass
class Overlap:
    """Runs target passes on another thread and drafts on this one meanwhile."""

    target: TargetContext
    draft: DraftContext
    seconds: float = 0.0  # time in draft passes that ran during a target pass
    _plan: Plan = field(default_factory=OFF.plan)  # of the last pass
    _n_before: int = 0  # tokens committed before it
    _ready: dict[tuple[int, ...], Draft] = field(default_factory=dict)  # by the tokens that it commits

    def forget(self) -> None:
        """Drop the trees that are ready, because another text begins."""
        self._ready = {}

    def take(self, plan: Plan, limits: DraftLimits) -> Draft | None:
        """What was drafted during the last pass for the present committed text, if its tree is within `limits`."""
        draft = self._ready.get(tuple(self.target.tokens[self._n_before :])) if plan == self._plan else None
        if draft is None or len(draft.tree) > limits.budget or draft.tree.depth > limits.depth:
            return None
        return draft

    def score(
        self,
        tree: TokenTree,
        drafting: Drafting,
        limits: Callable[[int], DraftLimits],
        ends_text: Callable[[int], bool],
    ) -> Logits:
        """Run the target's pass over `tree` and return its logits (see `TargetContext.score`); draft until it is over.

        drafting: what `tree` was drafted with, whose source is the draft.
        limits: gives the bounds of the next tree if the pass commits so many tokens.
        ends_text: whether a token ends the text, so that no tree follows it.

        When this returns or raises, the pass is over and the draft's cache is consistent. The pass cannot be
        interrupted, so a Ctrl-C is raised when it is over.
        """
        self._plan, self._n_before, self._ready = drafting.plan, len(self.target.tokens), {}
        before = self.draft.context.decode_seconds
        with interrupts.held():
            running = _beside(lambda: self.target.score(tree))
            try:
                assert isinstance(drafting.source, ModelCandidates)
                drafting = replace(drafting, source=replace(drafting.source, model=_WhileRunning(self.draft, running)))
                with self.draft.context.half_of_the_threads(), suppress(_PassOverError):
                    self._draft_ahead(tree, drafting, limits, ends_text)
            except BaseException:
                self.draft.reset()  # its cache may be inconsistent
                raise
            finally:
                wait([running])
                self.seconds += self.draft.context.decode_seconds - before
        return running.result()

    def _draft_ahead(
        self,
        tree: TokenTree,
        drafting: Drafting,
        limits: Callable[[int], DraftLimits],
        ends_text: Callable[[int], bool],
    ) -> None:
        text = list(self.target.tokens)

        def next_tokens(path: Sequence[int]) -> Candidates:
            return drafting.need_source().children(TreeGrowth([*text, *path]), [ROOT])[0]

        for path in likeliest(tree, next_tokens, LEAST_CHANCE):
            accepted = tree.path_of(path[:-1])
            next_limits = replace(limits(len(path)), pending=len(accepted) - n_in_order(accepted))
            if ends_text(path[-1]) or next_limits.depth < 1:
                continue
            guesses = GuessesBehind(drafting.guesses, path) if drafting.guesses else None
            drafter = replace(drafting, guesses=guesses).drafter()
            assert drafter is not None
            # The times of these draft passes say nothing, as they run beside the target's.
            self._ready[path] = Draft(drafter.draft([*text, *path], next_limits).tree)


class _PassOverError(Exception):
    """The target's pass is over, so drafting must end."""


@dataclass
class _WhileRunning:
    """The draft model while the target's pass runs. Once that is over, every draft pass raises `_PassOverError`."""

    model: DraftModel
    running: Future[Logits]

    def __post_init__(self) -> None:
        self.expandable = self.model.expandable

    @property
    def n_vocab(self) -> int:
        return self.model.n_vocab

    def start(self, tokens: Sequence[int]) -> Logits:
        self._check()
        return self.model.start(tokens)

    def expand(self, nodes: Sequence[DraftNode]) -> Logits:
        self._check()
        return self.model.expand(nodes)

    def _check(self) -> None:
        if self.running.done():
            raise _PassOverError


def _beside(work: Callable[[], Logits]) -> Future[Logits]:
    """Do the work on a new thread, which ends with it.

    OpenMP keeps a team of workers for every thread that called it, as long as that thread lives. Once all teams
    together have more workers than there are cores, idle workers sleep instead of spinning. With a kept thread, short
    passes took four times as long (docs/adr/0007).
    """
    thread = ThreadPoolExecutor(1, "target pass")
    running = thread.submit(work)
    thread.shutdown(wait=False)
    return running


def likeliest(tree: TokenTree, next_tokens: NextTokens, least_chance: float = 0.0) -> Iterator[tuple[int, ...]]:
    """Yield the token sequences that a pass over `tree` may commit, likeliest first, down to the chance `least_chance`.

    A sequence consists of a path of drafted tokens and one token that no child there holds. By the scores of the tree a
    path ends at a node with the chance that the node is accepted and none of its children is; the draft's candidates
    after the node share that chance. `next_tokens` is called for a node only when it is needed, so each further item
    may take a draft pass.
    """
    accepted = np.exp(tree.scores)
    ends = accepted.copy()
    np.subtract.at(ends, tree.parents[1:], accepted[1:])
    # A heap of nodes (token None) and of tokens that may follow a node: (-chance, serial number, node, token).
    waiting: list[tuple[float, int, int, int | None]] = [
        (-float(chance), node, node, None) for node, chance in enumerate(ends) if chance > 0
    ]
    heapq.heapify(waiting)
    n_offered = len(tree)
    while waiting:
        chance, _, node, token = heapq.heappop(waiting)
        if -chance < least_chance:
            return
        path = [int(tree.tokens[i]) for i in tree.path_to(node)]
        if token is not None:
            yield (*path[1:], token)
            continue
        candidates = next_tokens(path[1:])
        drafted = {int(tree.tokens[child]) for child in tree.children[node]}
        shares = dict(zip(candidates.tokens.tolist(), candidates.shares.tolist(), strict=True))
        others = {other: share for other, share in shares.items() if other not in drafted}
        total = sum(others.values())
        for other, share in others.items():
            if share > 0:
                heapq.heappush(waiting, (chance * share / total, n_offered, node, other))
                n_offered += 1
