"""Cost tables: measured milliseconds of a pass over n tokens, never a fitted curve.

Pass times are jagged: kernels change with the size of the batch, so a pass over 8 tokens may cost less than one over 6
and one over 65 twice as much as one over 64. What lies between two measured sizes is drawn straight between them, and
the planner only ever asks for sizes that were measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Milliseconds = NDArray[np.float64]

_CTX_STEP = 64  # context lengths are rounded to this, so that rows can be kept


@dataclass(frozen=True)
class PassTime:
    """Median milliseconds of a pass over `n` tokens behind `ctx` cached ones; spread is the half distance between the
    quartiles, in ms; samples is the number of passes timed.
    """

    n: int
    ctx: int
    ms: float
    spread: float = 0.0
    samples: int = 1


class CostTable:
    """T(n, ctx) from measured points.

    The context length with the most sizes is the base; at another one, the difference from the base is drawn straight
    between the sizes measured there, and grows in proportion to the tokens beyond them. Between context lengths, and
    beyond the longest, times are drawn straight too.
    Raises ValueError without any point.
    """

    def __init__(self, times: Iterable[PassTime]) -> None:
        self.times = tuple(sorted(times, key=lambda t: (t.ctx, t.n)))
        if not self.times:
            raise ValueError("a cost table needs at least one measured pass")
        by_ctx: dict[int, dict[int, float]] = {}
        for t in self.times:
            by_ctx.setdefault(t.ctx, {})[t.n] = t.ms
        base_ctx = max(by_ctx, key=lambda ctx: (len(by_ctx[ctx]), -ctx))
        base = by_ctx[base_ctx]
        self.sizes: tuple[int, ...] = tuple(sorted(base))
        self._n = np.arange(self.sizes[-1] + 1)
        base_row = np.interp(self._n, self.sizes, [base[n] for n in self.sizes])
        self._contexts = tuple(sorted(by_ctx))
        self._rows = np.stack([self._at(by_ctx[ctx], base, base_row) for ctx in self._contexts])
        self._kept: dict[int, Milliseconds] = {}

    def _at(self, points: dict[int, float], base: dict[int, float], base_row: Milliseconds) -> Milliseconds:
        sizes = sorted(n for n in points if n in base)
        if not sizes:
            return base_row
        more = np.interp(self._n, sizes, [points[n] - base[n] for n in sizes])
        # Every token of a pass attends to the whole context, so beyond the last size it adds up in proportion.
        beyond = np.maximum(self._n / sizes[-1], 1.0) if more[-1] > 0 else 1.0
        return np.asarray(base_row + more * beyond)

    @property
    def largest(self) -> int:
        """The largest measured size."""
        return self.sizes[-1]

    def row(self, ctx: int) -> Milliseconds:
        """float64[largest + 1]: ms of a pass over n tokens behind about `ctx` cached ones, indexed by n."""
        bucket = round(ctx / _CTX_STEP)
        if bucket not in self._kept:
            self._kept[bucket] = self._interpolated(bucket * _CTX_STEP)
        return self._kept[bucket]

    def _interpolated(self, ctx: int) -> Milliseconds:
        contexts = self._contexts
        if len(contexts) == 1 or ctx <= contexts[0]:
            return self._rows[0]
        upper = min(int(np.searchsorted(contexts, ctx)), len(contexts) - 1)
        low, high = contexts[upper - 1], contexts[upper]
        slope = (self._rows[upper] - self._rows[upper - 1]) / (high - low)
        if ctx > high:
            # A longer context never makes a pass cheaper; that it seemed to is noise.
            return np.asarray(self._rows[upper] + (ctx - high) * np.maximum(slope, 0))
        return np.asarray(self._rows[upper - 1] + (ctx - low) * slope)

    def ms(self, n: int, ctx: int) -> float:
        """Milliseconds of a pass over `n` tokens; beyond the largest measured size in proportion to it."""
        row = self.row(ctx)
        return float(row[n]) if n <= self.largest else float(row[-1]) * n / self.largest

    def as_json(self) -> list[dict[str, Any]]:
        return [asdict(t) | {"ms": round(t.ms, 4), "spread": round(t.spread, 4)} for t in self.times]

    @classmethod
    def from_json(cls, entries: Sequence[dict[str, Any]]) -> CostTable:
        """Raises KeyError, TypeError or ValueError for entries that are not those of `as_json`."""
        return cls(PassTime(e["n"], e["ctx"], e["ms"], e.get("spread", 0.0), e.get("samples", 1)) for e in entries)


@dataclass(frozen=True)
class Overhead:
    """Our own milliseconds, outside llama.cpp's passes. step: of every step (sampling, acceptance, bookkeeping).
    level: of every draft pass. node: of every node that the draft expands.
    """

    step: float = 0.0
    level: float = 0.0
    node: float = 0.0


@dataclass(frozen=True)
class CostModel:
    """Everything that a step costs on one machine for one pair. draft is None without a draft model."""

    target: CostTable
    draft: CostTable | None = None
    overhead: Overhead = field(default_factory=Overhead)

    def plain_ms(self, ctx: int) -> float:
        """A step of plain decoding."""
        return self.target.ms(1, ctx) + self.overhead.step

    def level_ms(self, width: int, ctx: int) -> float:
        """A draft pass over `width` nodes, with our own work on them."""
        passes = self.draft.ms(width, ctx) if self.draft else 0.0
        return passes + self.overhead.level + width * self.overhead.node

    def levels_row(self, ctx: int) -> Milliseconds:
        """float64[n + 1]: `level_ms` of every width up to the largest that was measured."""
        row = self.draft.row(ctx) if self.draft else np.zeros(2)
        return np.asarray(row + self.overhead.level + np.arange(len(row)) * self.overhead.node)

    def as_json(self) -> dict[str, Any]:
        return {
            "target": self.target.as_json(),
            "draft": self.draft.as_json() if self.draft else None,
            "overhead": {name: round(ms, 5) for name, ms in asdict(self.overhead).items()},
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> CostModel:
        """Raises KeyError, TypeError or ValueError for a value that is not that of `as_json`."""
        draft = value["draft"]
        return cls(
            CostTable.from_json(value["target"]),
            CostTable.from_json(draft) if draft else None,
            Overhead(**value["overhead"]),
        )
