"""Times passes of the target and of the draft: medians over rounds, with an anchor against drift."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from specrun.llama import DraftContext, TargetContext
from specrun.speculation.drafter import DraftNode
from specrun.speculation.planning.costs import CostTable, PassTime
from specrun.speculation.tree import ROOT, TokenTree

_SLOW_MS = 200.0  # of a pass over one token, above which a longer context is timed at two sizes only
_TOO_SLOW_MS = 2000.0  # above which it is not timed once the time is over
_DRIFT = 1.25  # a round is left out when its anchor took longer than this times the best rounds' anchor
_JAGGED = 0.12  # share by which a pass may miss the straight line between its neighbours before they are looked into
_FEWEST_ROUNDS = 2
_ANCHORS, _FEW_ANCHORS = 5, 2  # passes
_SHORTEST_MS = 8.0  # of one timing: shorter passes are repeated, and their median taken
_MOST_REPEATS = 9

Deadline = Callable[[], bool]


class PassTimer(Protocol):
    """Times passes of one context."""

    @property
    def largest(self) -> int:
        """Most tokens of a pass."""
        ...

    def fill(self, ctx: int) -> None:
        """Bring the cache to `ctx` tokens."""
        ...

    def ms(self, n: int) -> float:
        """Milliseconds of one pass over `n` tokens; the cache is as before."""
        ...


class TargetTimer:
    """The target's passes, logits of every token read back, as in use."""

    def __init__(self, target: TargetContext, tokens: Sequence[int], largest: int) -> None:
        self._target = target
        self._tokens = list(tokens)
        self._largest = largest

    @property
    def largest(self) -> int:
        return self._largest

    def fill(self, ctx: int) -> None:
        self._target.set_prompt(_repeated(self._tokens, ctx + 1))

    def ms(self, n: int) -> float:
        target = self._target
        tree = TokenTree.chain([target.tokens[-1], *_repeated(self._tokens[::-1], n - 1)])
        started = time.perf_counter()
        target.score(tree)
        taken = time.perf_counter() - started
        target.drop_tree()
        return taken * 1e3


class DraftTimer:
    """The draft's passes over siblings, each a sequence of its own, as growth makes them."""

    def __init__(self, draft: DraftContext, tokens: Sequence[int], largest: int) -> None:
        self._draft = draft
        self._tokens = list(tokens)
        self._largest = largest
        self._text: list[int] = []

    @property
    def largest(self) -> int:
        return self._largest

    def fill(self, ctx: int) -> None:
        self._text = _repeated(self._tokens, ctx)

    def ms(self, n: int) -> float:
        self._draft.start(self._text)
        nodes = [DraftNode(i + 1, ROOT, token) for i, token in enumerate(_repeated(self._tokens, n))]
        started = time.perf_counter()
        self._draft.expand(nodes)
        return (time.perf_counter() - started) * 1e3


def _repeated(tokens: Sequence[int], count: int) -> list[int]:
    return [tokens[i % len(tokens)] for i in range(count)]


@dataclass
class Measured:
    """Times by size at one context length, as rounds bring them in. notices: what disturbed them."""

    ctx: int
    ms: dict[int, list[float]] = field(default_factory=dict)
    n_disturbed: int = 0

    def times(self) -> list[PassTime]:
        """Median and spread of every size."""
        return [PassTime(n, self.ctx, statistics.median(ms), _spread(ms), len(ms)) for n, ms in sorted(self.ms.items())]

    def add(self, found: dict[int, float]) -> None:
        for n, ms in found.items():
            self.ms.setdefault(n, []).append(ms)

    def scale(self, factor: float) -> None:
        """Take all times as so many times as long."""
        self.ms = {n: [factor * one for one in ms] for n, ms in self.ms.items()}


def _spread(ms: Sequence[float]) -> float:
    low, high = np.percentile(ms, [25, 75])
    return float(high - low) / 2


def rounds(timer: PassTimer, ctx: int, sizes: Sequence[int], n_rounds: int, over: Deadline) -> Measured:
    """Time every size once a round. A round is begun and ended by the anchor, a pass over one token; one whose anchor
    is much slower than the best was disturbed (heat, another program) and is measured again, at most as often again.

    `over` is asked after every pass; two rounds are made in any case.
    """
    timer.fill(ctx)
    timer.ms(1)
    repeats: dict[int, int] = {}

    def timed(n: int) -> float:
        first = timer.ms(n)
        count = repeats.setdefault(n, max(1, min(_MOST_REPEATS, round(_SHORTEST_MS / max(first, 1e-3)))))
        return statistics.median([first, *(timer.ms(n) for _ in range(count - 1))])

    kept = Measured(ctx)
    best = float("inf")
    attempts = 0
    while attempts < 2 * n_rounds and len(kept.ms.get(1, [])) < n_rounds:
        attempts += 1
        must = len(kept.ms.get(1, [])) < _FEWEST_ROUNDS
        found: dict[int, float] = {}
        first = timed(1)
        for n in sizes:
            if over() and not must:
                return kept
            if n > 1:
                found[n] = timed(n)
        last = timed(1)
        best = min(best, first, last)
        if max(first, last) > _DRIFT * best and attempts < 2 * n_rounds - 1 and not over():
            kept.n_disturbed += 1
            continue
        found[1] = min(first, last)
        kept.add(found)
    return kept


def table(
    timer: PassTimer,
    sizes: Sequence[int],
    contexts: Sequence[int],
    n_rounds: int,
    over: Deadline,
    progress: Callable[[str], None],
) -> tuple[CostTable, int]:
    """The cost table: `sizes` at the first context length, looked into where it is jagged, then a few sizes at the
    others. Also the number of disturbed rounds.

    The lengths are measured after each other, and a machine may be half as fast a minute later; so plain passes at the
    first length, before and after those at another, say how fast it was meanwhile.
    """
    progress(f"passes over 1 to {sizes[-1]} tokens, context {contexts[0]}")
    base = rounds(timer, contexts[0], sizes, n_rounds, over)
    refine(timer, base, n_rounds, over)
    times, disturbed = base.times(), base.n_disturbed
    plain = statistics.median(base.ms[1])
    shortest = {t.n: t.ms for t in times}
    for ctx in contexts[1:]:
        few = [n for n in sizes if n & (n - 1) == 0]
        if over():
            # What a long text adds to a pass grows with its tokens, and says how large trees may be: it must be known.
            if plain > _TOO_SLOW_MS:
                break
            few = [n for n in few if n in ((1, 4, 16) if plain < _SLOW_MS else (1, 16))]
        progress(f"passes at context {ctx}")
        n_anchors = _ANCHORS if plain < _SLOW_MS else _FEW_ANCHORS
        before = _anchor(timer, contexts[0], n_anchors)
        further = rounds(timer, ctx, few, max(n_rounds // 2, 1), over)
        further.scale(2 * plain / (before + _anchor(timer, contexts[0], n_anchors)))
        # A longer context never makes a pass cheaper; that it seemed to is noise.
        times += [replace(t, ms=max(t.ms, shortest[t.n])) for t in further.times()]
        disturbed += further.n_disturbed
    return CostTable(times), disturbed


def _anchor(timer: PassTimer, ctx: int, count: int) -> float:
    timer.fill(ctx)
    return statistics.median(timer.ms(1) for _ in range(count))


def refine(timer: PassTimer, base: Measured, n_rounds: int, over: Deadline) -> None:
    """Halve every interval whose middle does not lie on the straight line between its ends, until the line holds or
    nothing is left between them: so the sizes just before and after a cliff are found.
    """
    known = {n: statistics.median(ms) for n, ms in base.ms.items()}
    sizes = sorted(known)
    intervals = list(itertools.pairwise(sizes))
    while intervals and not over():
        low, high = intervals.pop(0)
        if high - low < 2:
            continue
        middle = (low + high) // 2
        straight = known[low] + (known[high] - known[low]) * (middle - low) / (high - low)
        found = [timer.ms(middle) for _ in range(n_rounds)]
        known[middle] = statistics.median(found)
        base.ms.setdefault(middle, []).extend(found)
        if abs(known[middle] - straight) > _JAGGED * straight:
            intervals += [(low, middle), (middle, high)]
