"""Current times of draft passes: a cost table corrected by this run's passes, or what these passes alone tell."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specrun.speculation.planning.costs import CostModel, CostTable, Milliseconds, PassTime

# All chosen by hand.
_NEWEST_WEIGHT = 0.15  # weight of the newest pass in the factor on a table
_BOUNDS = (0.1, 10.0)  # bounds of one pass's measured drafting time divided by the expected one

_MOST_WIDTH = 32  # nodes of the widest draft pass that is planned
# Before any draft pass was made: milliseconds of a draft pass and of each of its nodes, our own work included, and
# shares of a plain pass on top of them, at least.
_FIRST_MS, _FIRST_SHARES = (1.5, 0.1), (0.03, 0.003)
_FIRST_WEIGHT = 0.03  # passes that these first guesses count as
_DECAY = 0.97  # factor on what is known after each pass with drafting, so that about the last 30 count


class TabledDraftTimes:
    """Cost tables times one factor: measured drafting time divided by the expected one."""

    def __init__(self, costs: CostModel) -> None:
        self._costs = costs
        self._slowness = 1.0

    def row(self, ctx: int, plain_ms: float) -> Milliseconds:  # noqa: ARG002 - the tables know more
        """float64[most nodes + 1]: row[n] is the milliseconds, with our own work, of a draft pass over n nodes."""
        return self._costs.levels_row(ctx) * self._slowness

    def record(self, widths: Sequence[int], ctx: int, plain_ms: float, ms: float) -> None:  # noqa: ARG002
        """Learn that draft passes over so many nodes each took `ms` together."""
        row = self._costs.levels_row(ctx)
        expected = float(sum(row[min(width, len(row) - 1)] for width in widths))
        if expected > 0:
            ratio = min(max(ms / expected, _BOUNDS[0]), _BOUNDS[1])
            self._slowness += _NEWEST_WEIGHT * (ratio - self._slowness)


class LearnedDraftTimes:
    """Times without a table: so many milliseconds for each draft pass and for each of its nodes, by least squares.

    Only the sum over the draft passes of a tree is timed, but trees differ in their widths, so both parts show.
    """

    def __init__(self, known: tuple[float, float] | None = None, share: float = 0.0) -> None:
        """known: milliseconds of a draft pass and of each of its nodes, learned by earlier runs; None for nothing.

        share: of a plain pass that a draft pass takes, by the weights that both read.
        """
        self._known = known
        self._shares = max(_FIRST_SHARES[0], share), _FIRST_SHARES[1]
        self._products, self._sums = np.zeros((2, 2)), np.zeros(2)

    @classmethod
    def of_table(cls, table: CostTable) -> LearnedDraftTimes:
        """The times that an earlier run kept as a `table`."""
        one, many = table.ms(1, 0), table.ms(_MOST_WIDTH, 0)
        node = (many - one) / (_MOST_WIDTH - 1)
        return cls((one - node, node))

    def table(self, plain_ms: float) -> CostTable:
        """What is known, for a later run."""
        row = self.row(0, plain_ms)
        return CostTable([PassTime(n, 0, float(row[n])) for n in (1, _MOST_WIDTH)])

    def parts(self, plain_ms: float) -> tuple[float, float]:
        """Milliseconds of a draft pass, and of each of its nodes."""
        guess = np.asarray(self._known or np.asarray(_FIRST_MS) + np.asarray(self._shares) * plain_ms)
        spread = float(guess @ self._products @ guess)
        if spread > 0:
            guess = guess * float(guess @ self._sums) / spread  # scaled, with its proportions
        # Errors are relative, so slow passes count no more than fast passes.
        weight = _FIRST_WEIGHT / np.square(guess)
        both = np.linalg.solve(self._products + np.diag(weight), self._sums + weight * guess)
        return max(float(both[0]), 0.01 * guess[0]), max(float(both[1]), 0.01 * guess[1])

    def row(self, ctx: int, plain_ms: float) -> Milliseconds:  # noqa: ARG002 - the context is not looked at
        level, node = self.parts(plain_ms)
        return np.asarray(level + node * np.arange(_MOST_WIDTH + 1))

    def record(self, widths: Sequence[int], ctx: int, plain_ms: float, ms: float) -> None:
        row = self.row(ctx, plain_ms)
        expected = float(sum(row[min(width, _MOST_WIDTH)] for width in widths))
        ms = min(max(ms, _BOUNDS[0] * expected), _BOUNDS[1] * expected)
        shares = np.array([len(widths), sum(widths)]) / ms
        self._products = _DECAY * self._products + np.outer(shares, shares)
        self._sums = _DECAY * self._sums + shares


DraftTimes = TabledDraftTimes | LearnedDraftTimes
