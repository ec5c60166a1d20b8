"""Dynamic depth decoding (DDD, arXiv 2409.00142): EAGLE-2's beam, stopped where it has become unlikely.

EAGLE-2 (2406.16858) expands the likeliest nodes of the newest level only and keeps the best nodes of all levels in the
end. DDD looks at the probability that the beam holds altogether and drafts no deeper once that is small.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specrun.speculation.drafter import DraftLimits
from specrun.speculation.growth import CandidateSource, TreeGrowth, offer_children
from specrun.speculation.tree import ROOT, TokenTree

_BEAM = 10  # EAGLE-2's
_LEAST_SHARE = 0.3  # probability of the beam below which what the target takes is probably outside it


class DynamicDepthDrafter:
    """A beam of the draft's likeliest paths, as deep as they are believable."""

    def __init__(self, source: CandidateSource) -> None:
        self._source = source

    def draft(self, tokens: Sequence[int], limits: DraftLimits) -> TokenTree:
        """A tree within `limits`, of the best nodes seen."""
        growth = TreeGrowth(tokens)
        beam = [ROOT]
        for _ in range(limits.depth if limits.budget > 1 else 0):
            below = offer_children(growth, self._source, beam)
            beam = growth.best(below, min(_BEAM, limits.width))
            if np.exp([growth.scores[n] for n in beam]).sum() < _LEAST_SHARE:
                break
            beam = beam[: self._source.expandable([growth.parents[n] for n in beam])]
            if not beam:
                break
        return growth.tree(limits)
