"""The tokens that a drafter drew after a node, with the distribution that they were drawn from."""

from __future__ import annotations

from dataclasses import dataclass

from specrun.sampling import Distribution


@dataclass(frozen=True)
class Proposal(Distribution):
    """The draft's distribution after a node, with filters applied, and the candidates drawn from it."""

    draws: tuple[int, ...]  # in the order drawn; independent draws may repeat a token
