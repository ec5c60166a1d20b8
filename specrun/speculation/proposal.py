"""What the draft drew after a node, and from which distribution."""

from __future__ import annotations

from dataclasses import dataclass

from specrun.sampling import Distribution


@dataclass(frozen=True)
class Proposal(Distribution):
    """The draft's distribution after a node, its filters applied, and the candidates drawn from it.

    draws: the candidates in the order drawn; drawn with replacement, one can be there twice.
    """

    draws: tuple[int, ...]
