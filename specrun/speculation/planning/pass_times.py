"""Current times of target passes: the cost table, corrected by the passes of this run."""

from __future__ import annotations

import numpy as np

from specrun.speculation.planning.costs import CostTable, Milliseconds

# Each pass multiplies two factors by a power of measured time / expected time.
_MACHINE_POWER = 0.15  # for the machine's factor, after the first passes
_SIZE_POWER = 0.05  # for the factor of the pass's size, after many passes of that size
_SETTLED = 8.0  # passes after which a deviation counts mostly for the size and not for the machine
_MAX_DEVIATION = 2.0  # a single pass counts as at most this many times slower or faster than expected
_BOUNDS = (0.1, 10.0)  # limits of the factors


class PassTimes:
    """A cost table times two factors.

    One factor says how slow the machine is now, as other programs, heat and the file cache change its speed. The other
    corrects the entry of a size, padding included, relative to the other sizes; it is 1 until a pass of that size was
    run.
    """

    def __init__(self, table: CostTable) -> None:
        self._table = table
        self._slowness = 1.0
        self._relative = np.ones(table.largest + 1)
        self._n_passes = np.zeros(table.largest + 1, np.int64)

    def row(self, ctx: int) -> Milliseconds:
        """float64[largest + 1]: row[n] is the milliseconds of a pass over n tokens after `ctx` cached ones."""
        return np.asarray(self._table.row(ctx) * self._relative[self._table.pass_sizes] * self._slowness)

    def ms(self, n: int, ctx: int) -> float:
        """Milliseconds of a pass over `n` tokens; `n` is at most the largest measured size."""
        return float(self._table.row(ctx)[n] * self._relative[self._table.pass_sizes[n]]) * self._slowness

    def record(self, n: int, ctx: int, ms: float) -> None:
        """Learn that a pass over `n` tokens after `ctx` cached ones took `ms`. Sizes beyond the table are ignored."""
        if n > self._table.largest:
            return
        n = int(self._table.pass_sizes[n])
        deviation = min(max(ms / self.ms(n, ctx), 1 / _MAX_DEVIATION), _MAX_DEVIATION)
        n_before, n_of_size = int(self._n_passes.sum()), int(self._n_passes[n])
        size_power = max(_SIZE_POWER, n_before / (n_before + _SETTLED) / (2 + n_of_size))
        self._slowness = _bounded(self._slowness * deviation ** max(_MACHINE_POWER, 1 / (2 + n_before)))
        self._relative[n] = _bounded(float(self._relative[n]) * deviation**size_power)
        self._n_passes[n] += 1


def _bounded(factor: float) -> float:
    return min(max(factor, _BOUNDS[0]), _BOUNDS[1])
