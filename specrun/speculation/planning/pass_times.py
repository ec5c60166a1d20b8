"""What target passes take now: by `specrun tune`, by earlier runs, and by the passes of this run, in one model."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specrun.speculation.planning.costs import CostTable, Milliseconds, PassTime
from specrun.speculation.planning.pass_sizes import ANY_SIZE, PassSizes

# Each pass multiplies two factors by a power of measured time / expected time.
_MACHINE_POWER = 0.15  # for the machine's factor, after the first passes
_SIZE_POWER = 0.05  # for the time of the pass's size, after many passes of that size
_SETTLED = 8.0  # passes after which a deviation counts mostly for the size and not for the machine
_MAX_DEVIATION = 2.0  # a single pass counts as at most this many times slower or faster than expected
_BOUNDS = (0.1, 10.0)  # limits of the machine's factor

MOST_TOKENS = 512  # of a pass over a tree: llama.cpp computes more in two
# The steps are an eighth to a quarter of the size, so a tree is at most by that much smaller than the best.
SIZES = (
    *range(1, 9), *range(10, 17, 2), *range(20, 33, 4), *range(40, 65, 8), *range(80, 129, 16), *range(160, 257, 32),
    *range(320, 513, 64),
)  # fmt: skip
_FEW = 4  # passes of a size up to which its time is the mean of them
_NODE_SHARE = 0.1  # a further token is first expected to add this share of a plain pass
# The same below the sizes that copy weights to a GPU, of which a prompt tells nothing: 0.31 to 0.34 on an H200.
_COMPUTED_SHARE = 0.3
# Of a pass that copies weights, a plain one: 0.54 to 0.59 there (docs/benchmarks/gpu.md), 0.37 by arithmetic on an RTX
# 4090 (scripts/machines/tables.py). Where one of the two was not made yet, it is guessed to take as little as this.
_PLAIN_SHARE, _MOST_PLAIN_SHARE = 0.4, 0.6
# Of passes that a CPU computes in the time of one over a single token: 8 cores, while they read weights from DDR4.
_FEW_TOKENS = 8
_FLATTER = 0.5  # beyond the largest known size, times rise by this share of the mean slope before it
_SLOW_MS = 100.0  # a plain pass of so many milliseconds tells enough; the first of shorter passes may be cold
_REACH, _LEAST_REACH = 2.5, 16  # how much larger than all passes before a pass may be, and tokens that it may have
_SAME = 0.01  # a table in which no time is wrong by more than this share is not made again
_FILLED = 0.95  # a pass is filled up to a larger size that takes at most this share of its time
_PROMPT_PASS = 512  # tokens of a prompt that llama.cpp computes at once, by its own default


@dataclass(frozen=True)
class ExpertGrowth:
    """How a mixture's passes grow with their tokens, before any was run.

    A pass reads the experts that any of its tokens chooses. If n tokens choose k of E experts each, independently, they
    choose E (1 - (1 - k/E)^n) of them on average. Passes grow about so (docs/benchmarks/mixtures.md).
    """

    n_experts: int  # of a layer
    n_used: int  # of a layer by a token
    share: float  # the share of a plain pass's time in which experts are read, between 0 and 1

    def row(self, largest: int) -> Milliseconds:
        """float64[largest + 1]: the time of a pass over n tokens by what it reads, relative to one over one token."""
        left = 1 - self.n_used / self.n_experts
        read = self.n_experts / self.n_used * (1 - left ** np.arange(largest + 1))
        return np.asarray(1 - self.share + self.share * read)


class PassTimes:
    """Milliseconds of a pass by its tokens and by the tokens in the cache, with specrun's own work in it.

    It begins with what `specrun tune` or earlier runs measured, or with nothing. A size that was run has its own time.
    Sizes between known ones are interpolated, times below them fall in proportion, and times beyond them rise more
    slowly: pass times are concave, so all are more optimistic than the truth, a planner tries the size if it could pay,
    and the pass corrects it. Reading a prompt tells the time of a large pass at no cost. Where large passes copy
    weights to a GPU, and smaller ones are computed where the weights lie, neither says more of the other than a guess.
    One factor for all sizes follows the machine's speed, which other programs, heat and the file cache change.

    A mixture's pass reads further experts for each token, and one over 8 tokens may take six times as long as one over
    a single token, so such optimism would cost much. Its times are those of the experts that are expected to be read,
    times a factor that known sizes and a prompt give, and that is interpolated between them.

    sizes: the tokens of passes that a planner may choose, ascending.
    """

    def __init__(
        self,
        known: Iterable[PassTime] = (),
        padding: PassSizes = ANY_SIZE,
        prompt_pass: int = _PROMPT_PASS,
        experts: ExpertGrowth | None = None,
        copies_from: int | None = None,
    ) -> None:
        """known: what was measured before, after the shortest text for all sizes, after longer ones for some.

        padding: the sizes that passes are padded to. prompt_pass: most tokens of a pass over a prompt. experts: those
        of a mixture. copies_from: tokens from which passes copy weights to a GPU; None where no pass does.
        """
        known = sorted(known, key=lambda t: t.ctx)
        self._ctx = known[0].ctx if known else 0
        self._known = {t.n: t.ms for t in known if t.ctx == self._ctx}
        # Measured before, so a deviation tells of the machine rather than of the size.
        self._samples = {t.n: max(t.samples, _FEW + 1) for t in known if t.ctx == self._ctx}
        self._behind = [t for t in known if t.ctx != self._ctx]
        end = max(MOST_TOKENS, *self._known) if self._known else MOST_TOKENS
        self._padded = np.array([min(padding.padded(n), end) for n in range(end + 1)], np.intp)
        self._prompt_pass = prompt_pass
        self._experts = experts
        # With another threshold all sizes of trees are computed in one way.
        self._copies_from = copies_from if copies_from and 1 < copies_from <= end else None
        self._prompt: tuple[int, float] | None = None
        self._slowness = 1.0
        self._n_passes = 0
        self.sizes = tuple(n for n in sorted({*SIZES, *self._known}) if n in padding) or SIZES
        self._may_fill = padding == ANY_SIZE
        self._is_stale = True  # whether the table lacks what was learned last
        self._make_table()

    def _make_table(self) -> None:
        """Make the table, unless it has all that was learned."""
        if not self._is_stale:
            return
        self._table = CostTable([*self._guessed(), *self._behind])
        self._tabled = dict(self._known)  # the times that the table was made of
        self._is_stale = False
        self._sizes = _filled(self._table.row(self._ctx), self._padded) if self._may_fill else self._padded

    def size(self, n: int) -> int:
        """The tokens of the pass over `n`, with padding: of a class of sizes, or more where that takes less time, as
        where a larger pass copies weights to a GPU, or kernels compute several tokens at a time.
        """
        self._make_table()
        return int(self._sizes[n]) if n < len(self._sizes) else n

    @property
    def knows_plain(self) -> bool:
        """Whether the time of a pass over one token is known."""
        least = int(self._padded[1])
        return self._samples.get(least, 0) > 1 or self._known.get(least, 0.0) > _SLOW_MS

    @property
    def reach(self) -> int:
        """Tokens of the largest pass that may be planned: some times as many as any had, or the least that copy."""
        if self._experts:  # what larger passes take is known by the experts that they read
            return len(self._padded) - 1
        largest = max(self._prompt[0] if self._prompt else 1, *self._known, 1)
        return min(max(int(_REACH * largest), _LEAST_REACH, self._copies_from or 0), len(self._padded) - 1)

    def row(self, ctx: int) -> Milliseconds:
        """float64[largest + 1]: row[n] is the milliseconds of a pass over n tokens after `ctx` cached ones, where it
        has the `size` that takes least.
        """
        self._make_table()
        return np.asarray(self._table.row(ctx)[self._sizes] * self._slowness)

    def ms(self, n: int, ctx: int) -> float:
        """Milliseconds of a pass over `n` tokens, and padding of its class of sizes; beyond the largest size in
        proportion to `n`.
        """
        end = len(self._padded) - 1
        size = int(self._padded[min(n, end)])
        known = self._known.get(size) if n <= end and not self._behind else None
        # A plain pass may take half a millisecond, so its known time is not looked up in a new table.
        if known:
            return known * self._slowness
        self._make_table()
        return float(self._table.row(ctx)[size]) * self._slowness * max(n / end, 1.0)

    @property
    def times(self) -> list[PassTime]:
        """What is known, for a later run."""
        known = [PassTime(n, self._ctx, self._known[n], self._samples[n]) for n in sorted(self._known)]
        return [PassTime(t.n, t.ctx, t.ms * self._slowness, t.samples) for t in (*known, *self._behind)]

    def record(self, n: int, ctx: int, ms: float) -> None:
        """Learn that a pass over `n` tokens after `ctx` cached ones took `ms`. Sizes beyond the largest are ignored."""
        if n >= len(self._padded):
            return
        n = int(self._padded[n])
        samples = self._samples.get(n, 0)
        if samples <= _FEW:
            # How many times as long as after a short text a pass takes after this one.
            longer = float(self._table.row(ctx)[n] / self._table.row(self._ctx)[n]) if self._behind else 1.0
            now = ms / self._slowness / longer
            before = self._known.get(n, now)
            # The first pass of a size may have touched memory for the first time, so a faster second one replaces it.
            self._known[n] = min(before, now) if samples < 2 else before + (now - before) / (samples + 1)
            self._is_stale = True
        else:
            deviation = min(max(ms / self.ms(n, ctx), 1 / _MAX_DEVIATION), _MAX_DEVIATION)
            size_power = max(_SIZE_POWER, self._n_passes / (self._n_passes + _SETTLED) / (2 + samples))
            slowness = self._slowness * deviation ** max(_MACHINE_POWER, 1 / (2 + self._n_passes))
            self._slowness = min(max(slowness, _BOUNDS[0]), _BOUNDS[1])
            self._known[n] *= deviation**size_power
            if abs(self._known[n] / self._tabled.get(n, math.inf) - 1) > _SAME:
                self._is_stale = True
        self._samples[n] = samples + 1
        self._n_passes += 1

    def read_prompt(self, n_tokens: int, ms: float) -> None:
        """Learn that `n_tokens` tokens of a prompt took `ms`."""
        n = min(n_tokens, self._prompt_pass)
        if n > 1:
            self._prompt = (n, ms * n / n_tokens / self._slowness)
            self._is_stale = True

    def _guessed(self) -> list[PassTime]:
        """The times of all sizes up to the largest that a planner may choose."""
        points = dict(self._known) or {1: self._prompt[1] / self._prompt[0] if self._prompt else 1.0}
        end = len(self._padded) - 1
        split = self._copies_from or end + 1
        computed = {n: ms for n, ms in points.items() if n < split}
        copied = {n: ms for n, ms in points.items() if n >= split}
        large = self._prompt if self._prompt and self._prompt[0] > max(points) else None
        if large and large[0] >= split and self._copies_from:
            copied[large[0]], large = large[1], None
        if copied and not computed and self._copies_from:  # all passes so far had tokens of several texts
            computed = {1: _PLAIN_SHARE * min(copied.values())}
        if computed and not copied and self._copies_from and self._known:  # the prompt was short
            least = min(computed)
            copied = self._between([split], {least: computed[least] / _MOST_PLAIN_SHARE})
        if computed and copied:
            # The times of passes that copy weights hardly depend on the tokens.
            sizes = [n for n in (split, *SIZES) if n >= split]
            found = self._one_way(computed, large, split - 1) | self._between(sizes, copied) | copied
        else:
            found = self._one_way(points, large, end)
        return [PassTime(n, self._ctx, ms) for n, ms in found.items() if n <= end]

    def _one_way(self, points: dict[int, float], prompt: tuple[int, float] | None, end: int) -> dict[int, float]:
        """The times of sizes up to `end`, which are all computed in one way. prompt: tokens, more than those of
        `points`, and milliseconds of a pass over a prompt that was, too; None for none.
        """
        if self._experts:
            return self._of_mixture(points, prompt if self._known else None, end)
        least, largest = min(points), max(points)
        # All passes so far may have had parts of prompts. If smaller ones were expected to take as long as those, each
        # would be filled with nodes that seem free, and nothing be learned of them. By concave times this is the least.
        points = {1: points[least] / least} | points
        if largest >= end:
            return points
        if prompt:
            slope = max(prompt[1] - points[largest], 0.0) / (prompt[0] - largest)
        elif largest > least:
            slope = _FLATTER * max(points[largest] - points[least], 0.0) / (largest - least)
        else:
            # The first pass may be one of several texts: then a token takes no more than those of that pass.
            slope = min(_NODE_SHARE, 1 / least) * points[least]
        if self._copies_from is not None and largest < _FEW_TOKENS:
            slope = max(slope, _COMPUTED_SHARE * points[least])
        return points | {end: points[largest] + slope * (end - largest)}

    def _of_mixture(self, points: dict[int, float], prompt: tuple[int, float] | None, end: int) -> dict[int, float]:
        sizes = [n for n in SIZES if n < end] + [end]
        expected = self._between(sizes, points | dict([prompt] if prompt else []))
        if self._copies_from is not None:  # a prompt does not tell either what it takes to compute with few experts
            least, largest = min(points), max(points)
            each = _COMPUTED_SHARE * points[least] / least
            expected |= {
                n: max(ms, points[largest] + each * (n - largest)) for n, ms in expected.items() if n > largest
            }
        return expected | points

    def _between(self, sizes: list[int], known: dict[int, float]) -> dict[int, float]:
        """The times of `sizes`, interpolated between known ones; a mixture's as a factor on what its experts take."""
        end = max(*sizes, *known)
        growth = self._experts.row(end) if self._experts else np.ones(end + 1)
        at = sorted(known)
        factors = np.interp(sizes, at, [known[n] / growth[n] for n in at])
        return {n: float(growth[n] * factor) for n, factor in zip(sizes, factors, strict=True)}


def _filled(row: Milliseconds, padded: NDArray[np.intp]) -> NDArray[np.intp]:
    """The size for each number of tokens: the smallest of those that take least, where that is clearly less.

    row: see `PassTimes.row`. padded: the sizes without that. A plain pass stays as it is.
    """
    ms = row[padded]
    least = np.minimum.accumulate(ms[::-1])[::-1]
    best = np.flatnonzero(ms == least)
    sizes = np.where(least <= _FILLED * ms, padded[best[np.searchsorted(best, np.arange(len(ms)))]], padded)
    sizes[:2] = padded[:2]
    return sizes
