"""What passes of the target take now: the cost table, kept up to date by the passes that are run."""

from __future__ import annotations

import numpy as np

from specrun.speculation.planning.costs import CostTable, Milliseconds

_NEWS = 0.15  # share of a surprise that the machine's slowness takes up
_OF_SIZE = 0.05  # share that the size's own factor takes up, once it is known
_SETTLED = 8.0  # passes after which a surprise says more of the size than of the machine
_SURPRISE = 2.0  # a pass counts as at most so much slower or faster than was expected: single ones may be anything
_BOUNDS = (0.1, 10.0)  # of the factors


class PassTimes:
    """One factor for all sizes says how slow the machine is now; other programs, heat and the file cache change it.
    One for each size says how far its entry is off beside those of the other sizes; it holds on while the size is not
    run, and is 1 until it was.
    """

    def __init__(self, table: CostTable) -> None:
        self._table = table
        self._slowness = 1.0
        self._relative = np.ones(table.largest + 1)
        self._n_passes = np.zeros(table.largest + 1, np.int64)

    def row(self, ctx: int) -> Milliseconds:
        """float64[n + 1]: milliseconds of a pass over n tokens behind `ctx` cached ones."""
        return np.asarray(self._table.row(ctx) * self._relative * self._slowness)

    def ms(self, n: int, ctx: int) -> float:
        """Milliseconds of a pass over n tokens, at most the largest measured size."""
        return float(self._table.row(ctx)[n] * self._relative[n]) * self._slowness

    def record(self, n: int, ctx: int, ms: float) -> None:
        """A pass over `n` tokens behind `ctx` took `ms`; sizes beyond the table say nothing of it."""
        if n > self._table.largest:
            return
        surprise = min(max(ms / self.ms(n, ctx), 1 / _SURPRISE), _SURPRISE)
        n_before, n_of_size = int(self._n_passes.sum()), int(self._n_passes[n])
        of_size = max(_OF_SIZE, n_before / (n_before + _SETTLED) / (2 + n_of_size))
        self._slowness = _bounded(self._slowness * surprise ** max(_NEWS, 1 / (2 + n_before)))
        self._relative[n] = _bounded(float(self._relative[n]) * surprise**of_size)
        self._n_passes[n] += 1


def _bounded(factor: float) -> float:
    return min(max(factor, _BOUNDS[0]), _BOUNDS[1])
