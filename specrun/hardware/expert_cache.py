"""Which experts of a mixture are kept in memory, where not all of them fit.

Layers come round in a circle, so the expert that was not used for the longest time is often one of those that come
next: a cache that drops it has no hits where it cannot hold all experts of a token. What tells most about the next
token is how often an expert was used, if the last tokens count more than those long before
(docs/benchmarks/mixtures.md).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# How much of an expert's rate the last token decides; half of it comes from the last 23 tokens. On the traces of
# docs/benchmarks/mixtures.md 0.02 to 0.1 differ by less than a point.
_AGEING = 0.03
_HUGE = 1 << 60  # more bytes than any expert has


class ExpertCache:
    """Chooses what is read and what is dropped; the memory is somebody else's.

    sizes: int64[n_layers, n_experts], bytes that are free again when an expert is dropped. n_used: experts of a layer
    that a token uses. budget: bytes of all experts that are kept.

    kept: bool[n_layers, n_experts]. n_bytes: of all that is kept. n_chosen, n_found: experts that passes have used so
    far, each counted once in a pass, and how many of them were kept at that time.
    """

    def __init__(self, sizes: NDArray[np.int64], n_used: int, budget: int) -> None:
        self.budget = budget
        self.kept = np.zeros(sizes.shape, np.bool_)
        self.n_bytes = self.n_chosen = self.n_found = 0
        self._sizes = sizes
        self._smallest = int(np.min(sizes, where=sizes > 0, initial=_HUGE))
        self._n_used = n_used
        self._rates = np.full(sizes.shape, n_used / sizes.shape[1])  # uses of an expert by a token, recent ones most

    def choose(self, layer: int, counts: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """A pass uses experts of a layer, which are kept from now on, even if they alone exceed the budget.

        counts: int64[n_experts], by how many tokens of the pass each expert is used.
        Returns the experts that have to be read, ascending, and (layer, expert) of those that are dropped, int[n, 2].
        """
        n_tokens = int(counts.sum()) / self._n_used
        rest = (1 - _AGEING) ** n_tokens
        self._rates[layer] = rest * self._rates[layer] + (1 - rest) / n_tokens * counts
        is_used = counts > 0
        missing = np.flatnonzero(is_used & ~self.kept[layer])
        n_used = int(np.count_nonzero(is_used))
        self.n_chosen += n_used
        self.n_found += n_used - len(missing)
        if not len(missing):
            return missing, _NONE
        stays = np.zeros_like(self.kept)
        stays[layer] = is_used
        self.n_bytes += int(self._sizes[layer, missing].sum())
        dropped = self._drop(self.kept & ~stays)
        self.kept[layer, missing] = True
        return missing, dropped

    def fill(self) -> list[NDArray[np.intp]]:
        """Keep as many experts as the budget allows, of all layers alike. Returns those of each layer to be read."""
        across_layers = np.where(self.kept, 0, self._sizes).T
        taken = np.cumsum(across_layers).reshape(across_layers.shape).T
        new = (self.n_bytes + taken <= self.budget) & ~self.kept
        self.kept |= new
        self.n_bytes += int(self._sizes[new].sum())
        return [np.flatnonzero(experts) for experts in new]

    def shrink(self, n_bytes: int) -> NDArray[np.intp]:
        """Keep so many bytes less than now, but at least a layer. Returns (layer, expert) of those that are dropped."""
        self.budget = max(self.n_bytes - n_bytes, int(self._sizes.sum(axis=1).max()))
        return self._drop(self.kept)

    def forget(self, layer: int, experts: NDArray[np.intp]) -> None:
        """These experts, which are kept, could not be read."""
        self.kept[layer, experts] = False
        self.n_bytes -= int(self._sizes[layer, experts].sum())

    def _drop(self, droppable: NDArray[np.bool_]) -> NDArray[np.intp]:
        """Of these experts, drop those with the lowest rates until all that is kept is within the budget."""
        excess = self.n_bytes - self.budget
        candidates = np.flatnonzero(droppable & (self._sizes > 0))
        if excess <= 0 or not len(candidates):
            return _NONE
        rates, sizes = self._rates.ravel()[candidates], self._sizes.ravel()[candidates]
        n = min(excess // self._smallest + 1, len(candidates))
        lowest = np.argpartition(rates, n - 1)[:n]
        lowest = lowest[np.argsort(rates[lowest])]
        freed = np.cumsum(sizes[lowest])
        n = min(int(np.searchsorted(freed, excess)) + 1, n)
        self.n_bytes -= int(freed[n - 1])
        dropped = candidates[lowest[:n]]
        self.kept.ravel()[dropped] = False
        return np.stack(np.unravel_index(dropped, self.kept.shape), axis=1)


_NONE = np.empty((0, 2), np.intp)
