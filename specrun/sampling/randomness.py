"""Fresh randomness for acceptance rules that compare distributions: it must never be the shared noise."""

from __future__ import annotations

from typing import Literal

import numpy as np

_STREAMS = {"draw": 1, "accept": 2}


def fresh(seed: int, position: int, stream: Literal["draw", "accept"]) -> np.random.Generator:
    """A generator of its own for drawing the tree rooted at `position`, and one for accepting it: the same for the same
    seed, independent of every other position's and of the noise that target and draft share.
    """
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, position, _STREAMS[stream]])))
