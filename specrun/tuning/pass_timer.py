"""Times passes of the target and of the draft, for cost tables.

Every size is timed once a round, and the medians over the rounds are kept; every pass of a run corrects them. Short
passes are repeated within a round. Where a pass has the size of the one before, llama.cpp takes its graph again, and a
CUDA card replays what it has recorded. Plain decoding gains by that, and trees, whose sizes change, do not. So passes
over one token are repeated one after the other, and those of other sizes in turn.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from specrun import clock
from specrun.decoding.engine import Engine
from specrun.llama import BlockDraft, RecurrentDraft, TargetContext
from specrun.long_run import Run
from specrun.speculation.drafter import DraftNode
from specrun.speculation.planning.costs import CostTable, PassTime
from specrun.speculation.tree import ROOT, TokenTree

_TOO_SLOW_MS = 2000.0  # where a plain pass takes longer, a longer context is not timed after the deadline
_JAGGED = 0.12  # relative distance of a pass from the line between its neighbours above which more sizes are timed
_MIN_ROUNDS = 2
_SHORTEST_MS = 8.0  # a timing takes at least so long: shorter passes are repeated, and their median is taken
_MAX_REPEATS = 9


@dataclass
class TargetTimer:
    """Times the target's passes. The logits of all tokens are read back, as in use.

    Every pass has the next tokens of the text. In a mixture of experts the same tokens would choose the same experts
    again, which would then be in memory already.
    """

    target: TargetContext
    tokens: Sequence[int]  # a text to decode, repeated where it is too short
    own_ms: float = 0.0  # of specrun's own work in a pass, which is added
    _at: int = 0

    def fill(self, ctx: int) -> float:
        """Bring the cache to `ctx` tokens. Returns the milliseconds that reading what was missing took."""
        started = clock.now()
        self.target.set_prompt(repeated(self.tokens, ctx + 1))
        self.target.checkpoint()
        return (clock.now() - started) * 1e3

    def ms(self, n: int) -> float:
        """Milliseconds of one pass over `n` tokens, which leaves the cache as it was."""
        chain = [self.tokens[(self._at + i) % len(self.tokens)] for i in range(n)]
        self._at += n
        self.target.tokens[-1] = chain[0]  # the root is not in the cache yet
        tree = TokenTree.chain(chain)
        started = clock.now()
        self.target.score(tree)
        seconds = clock.now() - started
        self.target.drop_tree()
        return seconds * 1e3 + self.own_ms


@dataclass
class DraftTimer:
    """Times the draft's passes over siblings, each a sequence of its own, as in the growth of a tree.

    A draft with recurrent states expands one path, so its passes are timed over paths.
    """

    engine: Engine
    tokens: Sequence[int]  # a text to decode, repeated where it is too short
    _ctx: int = 0

    def fill(self, ctx: int) -> None:
        self._ctx = ctx
        self.engine.read_for_draft(repeated(self.tokens, ctx))

    def ms(self, n: int) -> float:
        draft = self.engine.draft
        assert draft is not None, "only pairs are timed"
        is_tree = not isinstance(draft, RecurrentDraft)
        nodes = [DraftNode(i + 1, ROOT if is_tree else i, token) for i, token in enumerate(repeated(self.tokens, n))]
        started = clock.now()
        draft.start(repeated(self.tokens, self._ctx))
        expanding = clock.now()
        draft.expand(nodes)
        ended = clock.now()
        if isinstance(draft, BlockDraft):  # one pass for all levels, so each takes its share of it
            return ((expanding - started) / draft.block.n_levels + ended - expanding) * 1e3
        return (ended - expanding) * 1e3


PassTimer: TypeAlias = TargetTimer | DraftTimer


def repeated(tokens: Sequence[int], count: int) -> list[int]:
    """The first `count` tokens of a text that is repeated without end."""
    return [tokens[i % len(tokens)] for i in range(count)]


@dataclass
class Timings:
    """The timings of all rounds at one context length."""

    ctx: int
    ms: dict[int, list[float]] = field(default_factory=dict)  # milliseconds by tokens of the pass, one for each round

    def pass_times(self) -> list[PassTime]:
        """The median of every size."""
        return [PassTime(n, self.ctx, statistics.median(ms), len(ms)) for n, ms in sorted(self.ms.items())]


def rounds(timer: PassTimer, ctx: int, sizes: Sequence[int], n_rounds: int, run: Run) -> Timings:
    """Time passes over one token and over `sizes` once a round. The run's deadline is checked after every pass, but two
    rounds are made anyway.
    """
    timer.fill(ctx)
    timer.ms(1)
    timings = Timings(ctx)

    def count(n: int) -> int:
        """How often a size is timed in a round."""
        return max(1, min(_MAX_REPEATS, round(_SHORTEST_MS / max(timings.ms[n][0], 1e-3))))

    for i in range(n_rounds):
        taken: dict[int, list[float]] = {}
        for n in dict.fromkeys((1, *sizes)):
            if run.is_over() and i >= _MIN_ROUNDS:
                return timings
            taken[n] = [timer.ms(n)]
            timings.ms.setdefault(n, []).append(taken[n][0])
            if n == 1:
                taken[n] += [timer.ms(n) for _ in range(count(n) - 1)]
        repeat(timer, taken, {n: count(n) for n in taken if n > 1})
        for n, ms in taken.items():
            timings.ms[n][-1] = statistics.median(ms)
    return timings


def repeat(timer: PassTimer, taken: dict[int, list[float]], counts: Mapping[int, int]) -> None:
    """Time each size until it was timed as often as `counts` says, in turn. Where only one size is left and its passes
    are short, a pass over one token goes in between.

    taken: milliseconds by size, at least one of each, which further ones are added to; the last size was timed last.
    """
    last = next(reversed(taken), 0)
    for turn in range(1, max(counts.values(), default=0)):
        for n in (n for n in counts if counts[n] > turn):
            if n == last and taken[n][-1] < _SHORTEST_MS:
                timer.ms(1)
            taken[n].append(timer.ms(n))
            last = n


def table(
    timer: PassTimer,
    sizes: Sequence[int],
    contexts: Sequence[int],
    n_rounds: int,
    run: Run,
    timed: Timings | None = None,
) -> CostTable:
    """The cost table.

    All `sizes` are timed at the first of the context lengths, with further ones between them where the times are
    jagged; at the other lengths a few sizes are. timed: of these sizes at the first length, if that is done.
    """
    run.show(f"passes over 1 to {sizes[-1]} tokens, context {contexts[0]}")
    base = timed or rounds(timer, contexts[0], sizes, n_rounds, run)
    refine(timer, base, n_rounds, run)
    times = base.pass_times()
    shortest = {t.n: t.ms for t in times}
    for ctx in contexts[1:]:
        few = [n for n in sizes if n & (n - 1) == 0]
        if run.is_over():
            # The time that a long text adds to a pass grows with the pass, and so bounds the trees: it must be known.
            if shortest[1] > _TOO_SLOW_MS:
                break
            few = [n for n in few if n in (1, 4, 16)]
        run.show(f"passes at context {ctx}")
        timings = rounds(timer, ctx, few, max(n_rounds // 2, 1), run)
        # A longer context never makes a pass faster, so a shorter time is noise.
        times += [replace(t, ms=max(t.ms, shortest[t.n])) for t in timings.pass_times()]
    return CostTable(times)


def refine(timer: PassTimer, base: Timings, n_rounds: int, run: Run) -> None:
    """Add sizes between those of `base`, so that the two sizes on either side of a cliff are among them.

    The middle of every interval is timed. Where it is off the straight line between the ends, both halves are refined.
    """
    medians = {n: statistics.median(ms) for n, ms in base.ms.items()}
    intervals = list(itertools.pairwise(sorted(medians)))
    while intervals and not run.is_over():
        low, high = intervals.pop(0)
        if high - low < 2:
            continue
        middle = (low + high) // 2
        straight = medians[low] + (medians[high] - medians[low]) * (middle - low) / (high - low)
        ms = [timer.ms(middle)]
        repeat(timer, {middle: ms}, {middle: n_rounds})
        medians[middle] = statistics.median(ms)
        base.ms.setdefault(middle, []).extend(ms)
        if abs(medians[middle] - straight) > _JAGGED * straight:
            intervals += [(low, middle), (middle, high)]
