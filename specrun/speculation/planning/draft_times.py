"""What draft passes take now: by `specrun tune`, by earlier runs, and by the passes of this run, in one model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from specrun.speculation.planning.costs import CostTable, Milliseconds, PassTime

# A load times the draft, so the first guesses only count where it cannot, and for 3 % after one draft pass.
MOST_WIDTH = 64  # nodes of the widest draft pass that is planned
_BOUNDS = (0.1, 10.0)  # bounds of one pass's measured drafting time divided by the expected one
# Before any draft pass was timed: milliseconds of a draft pass and of each of its nodes, our own work included, and
# shares of a plain pass on top of them.
_FIRST_MS, _FIRST_SHARES = (1.5, 0.1), (0.03, 0.003)
_GUESSED, _MEASURED = 0.03, 3.0  # passes that these first guesses count as, and times that were measured before
_LEAST_MS = 1e-6  # no part is free, or errors relative to it could not be weighed
_DECAY = 0.97  # factor on what is known after each pass with drafting, so that about the last 30 count


class DraftTimes:
    """So many milliseconds for each draft pass and for each of its nodes, by least squares.

    Only the sum over the draft passes of a tree is timed, but trees differ in their widths, so both parts show.
    """

    def __init__(self, known: CostTable | None = None) -> None:
        """known: what was measured before; None for nothing."""
        self._table = known
        self._known: tuple[float, float] | None = None
        self._products, self._sums = np.zeros((2, 2)), np.zeros(2)
        if known:
            most = min(MOST_WIDTH, known.largest)
            one, many = known.ms(1, 0), known.ms(most, 0)
            node = max(many - one, 0.0) / max(most - 1, 1)
            self._known = max(one - node, _LEAST_MS), max(node, _LEAST_MS)

    def table(self, plain_ms: float) -> CostTable:
        """What is known, for a later run: times that were measured before are as much longer as passes now take."""
        row = self.row(plain_ms)
        if not self._table:
            return CostTable([PassTime(n, 0, float(row[n])) for n in (1, MOST_WIDTH)])
        longer = row / DraftTimes(self._table).row(plain_ms)
        return CostTable(replace(t, ms=t.ms * float(longer[min(t.n, MOST_WIDTH)])) for t in self._table.times)

    def parts(self, plain_ms: float) -> tuple[float, float]:
        """Milliseconds of a draft pass, and of each of its nodes. plain_ms: what a plain pass of the target takes."""
        guess = np.asarray(self._known or np.asarray(_FIRST_MS) + np.asarray(_FIRST_SHARES) * plain_ms)
        spread = float(guess @ self._products @ guess)
        if spread > 0:
            guess = guess * float(guess @ self._sums) / spread  # scaled, with its proportions
        # Errors are relative, so slow passes count no more than fast passes.
        weight = (_MEASURED if self._known else _GUESSED) / np.square(guess)
        both = np.linalg.solve(self._products + np.diag(weight), self._sums + weight * guess)
        return max(float(both[0]), 0.01 * guess[0]), max(float(both[1]), 0.01 * guess[1])

    def row(self, plain_ms: float) -> Milliseconds:
        """float64[most nodes + 1]: row[n] is the milliseconds, with our own work, of a draft pass over n nodes."""
        level, node = self.parts(plain_ms)
        return np.asarray(level + node * np.arange(MOST_WIDTH + 1))

    def record(self, widths: Sequence[int], plain_ms: float, ms: float) -> None:
        """Learn that draft passes over so many nodes each took `ms` together."""
        level, node = self.parts(plain_ms)
        expected = level * len(widths) + node * sum(widths)
        ms = min(max(ms, _BOUNDS[0] * expected), _BOUNDS[1] * expected)
        shares = np.array([len(widths), sum(widths)]) / ms
        self._products = _DECAY * self._products + np.outer(shares, shares)
        self._sums = _DECAY * self._sums + shares
