"""Dynamic depth decoding (DDD, arXiv 2409.00142): EAGLE-2's beam search, stopped when the beam becomes unlikely.

EAGLE-2 (arXiv 2406.16858) expands only the likeliest nodes of the newest level and finally keeps the best nodes of all
levels. DDD stops drafting deeper once the probabilities of the beam's nodes have a small sum.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specrun.speculation.drafter import Draft, DraftLimits
from specrun.speculation.growth import CandidateSource, TreeGrowth, expandable_of, offer_children
from specrun.speculation.tree import ROOT

BEAM = 10  # nodes, as in EAGLE-2
_LEAST_SHARE = 0.3  # below this sum of probabilities the target's token is probably outside the beam


class DynamicDepthDrafter:
    """Expands a beam of the draft's likeliest paths until their probabilities have a small sum."""

    def __init__(self, source: CandidateSource) -> None:
        self._source = source

    def draft(self, tokens: Sequence[int], limits: DraftLimits) -> Draft:
        """The tree of the best nodes that were offered, within `limits`."""
        growth = TreeGrowth(tokens)
        beam = [ROOT]
        for _ in range(limits.depth if limits.budget > 1 else 0):
            below = offer_children(growth, self._source, beam)
            beam = growth.best(below, limits.width)
            if np.exp([growth.scores[n] for n in beam]).sum() < _LEAST_SHARE:
                break
            beam = expandable_of(growth, self._source, beam, limits.width)
            if not beam:
                break
        return Draft(growth.tree(limits))
