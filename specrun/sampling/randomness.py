"""Random generators for acceptance rules that compare distributions. They are independent of the shared noise."""

from __future__ import annotations

from typing import Literal

import numpy as np

_STREAMS = {"draw": 1, "accept": 2}


def fresh(seed: int, position: int, stream: Literal["draw", "accept"]) -> np.random.Generator:
    """The generator for drawing the tree whose root is at `position`, or for accepting it.

    It depends on the arguments only, and is independent of those of other positions and of the noise that target and
    draft share.
    """
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, position, _STREAMS[stream]])))
