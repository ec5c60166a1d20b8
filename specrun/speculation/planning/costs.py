"""Cost tables: milliseconds of a pass over n tokens, measured and never fitted to a curve.

Pass times are jagged, as kernels change with the size of the batch: a pass over 8 tokens may take less time than one
over 6, and one over 65 twice as long as one over 64. Times between measured sizes are interpolated linearly.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Milliseconds = NDArray[np.float64]

_CTX_STEP = 64  # tokens; context lengths are rounded to multiples of this, so that rows can be cached


def marginal_ms(row: Milliseconds, n: int) -> float:
    """The least milliseconds for each further token of a pass that has `n` tokens; 0 if it cannot grow.

    row: float64[largest + 1]: row[n] is the milliseconds of a pass over n tokens.
    """
    larger = row[n + 1 :]
    if not len(larger):
        return 0.0
    return max(float(((larger - row[n]) / np.arange(1, len(larger) + 1)).min()), 0.0)


@dataclass(frozen=True)
class PassTime:
    """The measured time of passes of one size at one context length."""

    n: int  # tokens of the pass
    ctx: int  # tokens in the cache before it
    ms: float  # median, milliseconds
    samples: int = 1  # passes timed


class CostTable:
    """Milliseconds of a pass as a function of its tokens n and the context length.

    The context length with the most sizes is the base. At other lengths, the difference from the base is interpolated
    between the sizes measured there, and beyond them grows in proportion to n. Between context lengths times are
    interpolated, and beyond the longest extrapolated, linearly.

    times: all measured points, by context length and size.
    sizes: the sizes measured at the base, ascending.
    """

    def __init__(self, times: Iterable[PassTime]) -> None:
        """Raises ValueError without any times."""
        self.times = tuple(sorted(times, key=lambda t: (t.ctx, t.n)))
        by_ctx: dict[int, dict[int, float]] = {}
        for t in self.times:
            by_ctx.setdefault(t.ctx, {})[t.n] = t.ms
        base = by_ctx[max(by_ctx, key=lambda ctx: (len(by_ctx[ctx]), -ctx))] if by_ctx else {}
        self.sizes: tuple[int, ...] = tuple(sorted(base))
        if not self.sizes:
            raise ValueError("a cost table needs at least one measured pass")
        base_row = np.interp(np.arange(self.largest + 1), self.sizes, [base[n] for n in self.sizes])
        self._contexts = tuple(sorted(by_ctx))
        self._rows = np.stack([self._at(by_ctx[ctx], base, base_row) for ctx in self._contexts])
        self._cached: dict[int, Milliseconds] = {}

    def _at(self, points: dict[int, float], base: dict[int, float], base_row: Milliseconds) -> Milliseconds:
        sizes = sorted(n for n in points if n in base)
        if not sizes:
            return base_row
        n_tokens = np.arange(len(base_row))
        more = np.interp(n_tokens, sizes, [points[n] - base[n] for n in sizes])
        # Every token of a pass attends to the whole context, so the difference grows in proportion to n.
        beyond = np.maximum(n_tokens / sizes[-1], 1.0) if more[-1] > 0 else 1.0
        return np.asarray(base_row + more * beyond)

    @property
    def largest(self) -> int:
        """The largest measured size."""
        return self.sizes[-1]

    def row(self, ctx: int) -> Milliseconds:
        """float64[largest + 1]: row[n] is the milliseconds of a pass over n tokens after about `ctx` cached ones."""
        bucket = round(ctx / _CTX_STEP)
        if bucket not in self._cached:
            self._cached[bucket] = self._interpolated(bucket * _CTX_STEP)
        return self._cached[bucket]

    def _interpolated(self, ctx: int) -> Milliseconds:
        contexts = self._contexts
        if len(contexts) == 1 or ctx <= contexts[0]:
            return self._rows[0]
        upper = min(int(np.searchsorted(contexts, ctx)), len(contexts) - 1)
        low, high = contexts[upper - 1], contexts[upper]
        slope = (self._rows[upper] - self._rows[upper - 1]) / (high - low)
        if ctx > high:
            # A longer context never makes a pass faster, so a negative slope is noise.
            return np.asarray(self._rows[upper] + (ctx - high) * np.maximum(slope, 0))
        return np.asarray(self._rows[upper - 1] + (ctx - low) * slope)

    def ms(self, n: int, ctx: int) -> float:
        """Milliseconds of a pass over `n` tokens; beyond the largest measured size in proportion to `n`."""
        row = self.row(ctx)
        return float(row[n]) if n <= self.largest else float(row[-1]) * n / self.largest


@dataclass(frozen=True)
class CostModel:
    """The times of passes on one machine with one pair, with specrun's own work in them."""

    target: CostTable
    draft: CostTable | None = None  # None without a draft model
