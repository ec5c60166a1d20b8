"""Positional acceptance, measured teacher-forced: one pass of the target and one of the draft over each text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from specrun.engine.decoding import Engine
from specrun.llama.teacher_forced import rows_along
from specrun.sampling import Sampler, SamplingParameters
from specrun.speculation.planning import positional
from specrun.speculation.planning.calibration import MAX_RANK

# Draws at each position; chosen by hand.
_NOISE_DRAWS = 32  # of the noise that target and draft share
_REJECTION_DRAWS = 4  # without replacement


@dataclass
class PositionalMeter:
    """Sums up acceptance by the rank of a child, over all positions of all texts, at one temperature.

    sampling: the sampling parameters.
    n_positions: positions measured so far.
    match: float64[MAX_RANK], sums of the chance that sample and match accepts the k-th child.
    sampled: float64[MAX_RANK], sums of the chance that the k-th draw without replacement is accepted.
    """

    sampling: SamplingParameters
    n_positions: int = 0
    match: NDArray[np.float64] = field(default_factory=lambda: np.zeros(MAX_RANK))
    sampled: NDArray[np.float64] = field(default_factory=lambda: np.zeros(MAX_RANK))

    def add(self, engine: Engine, tokens: Sequence[int], skip: int = 0) -> None:
        """Measure one text except its first `skip` tokens. The engine's caches are empty afterwards."""
        assert engine.draft is not None, "only pairs are measured"
        sampler = Sampler(self.sampling, engine.target.n_vocab)
        rng = np.random.default_rng(0)
        blocks = rows_along(engine.target, engine.draft, tokens)
        positions = (rows for block in blocks for rows in zip(*block, strict=True))
        for target_row, draft_row in islice(positions, skip, None):
            self.n_positions += 1
            if self.sampling.temperature == 0:
                chances = positional.greedy(target_row, draft_row)
                self.match += chances
                self.sampled += chances
                continue
            p, q = sampler.distribution(target_row, ()), sampler.distribution(draft_row, ())
            self.match += positional.shared_noise(p, q, rng, _NOISE_DRAWS)
            self.sampled += positional.without_replacement(p, q, rng, _REJECTION_DRAWS)

    def vectors(self) -> tuple[list[float], list[float]]:
        """`match` and `sampled` divided by the number of positions, rounded to 4 digits."""
        n = max(self.n_positions, 1)
        return [round(float(p), 4) for p in self.match / n], [round(float(p), 4) for p in self.sampled / n]
