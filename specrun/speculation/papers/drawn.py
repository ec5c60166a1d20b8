"""Drafts whose tokens were drawn at random, for acceptance rules that compare two distributions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from specrun.sampling import Distribution
from specrun.speculation.drafter import Draft

_STREAMS = {"draw": 1, "accept": 2}


@dataclass(frozen=True)
class Proposal(Distribution):
    """The draft's distribution after a node, with filters applied, and the candidates drawn from it."""

    draws: tuple[int, ...]  # in the order drawn; independent draws may repeat a token


@dataclass(frozen=True)
class DrawnDraft(Draft):
    """A draft whose tree was drawn at random.

    proposals: for each node of the tree, how its children were drawn; None for a node without draws.
    """

    proposals: tuple[Proposal | None, ...] = ()

    def limited(self, max_nodes: int, max_leaves: int) -> Draft:  # noqa: ARG002
        """Raises ValueError: the acceptance rule needs every draw."""
        raise ValueError("a tree that was drawn at random cannot lose nodes")


def generator(seed: int, position: int, stream: Literal["draw", "accept"]) -> np.random.Generator:
    """The generator for drawing the tree whose root is at `position`, or for accepting it.

    It depends on the arguments only, and is independent of those of other positions and of the noise that target and
    draft share.
    """
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, position, _STREAMS[stream]])))
