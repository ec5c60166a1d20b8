"""Positional acceptance, measured teacher-forced: passes of draft and, unless known, target over each text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from specrun.engine.engine import Engine
from specrun.llama.context import Logits, rows_along
from specrun.sampling import Distribution, Sampler, SamplingParameters
from specrun.speculation.planning import positional
from specrun.speculation.planning.calibration import MAX_RANK

# Draws at each position; chosen by hand.
_NOISE_DRAWS = 32  # of the noise that target and draft share
_REJECTION_DRAWS = 4  # without replacement


@dataclass
class PositionalMeter:
    """Sums up acceptance by the rank of a child, over all positions of all texts, at one temperature."""

    sampling: SamplingParameters
    n_positions: int = 0  # positions measured so far
    # float64[MAX_RANK], sums of the chances that sample and match accepts the k-th child, and that the k-th draw
    # without replacement is accepted.
    match: NDArray[np.float64] = field(default_factory=lambda: np.zeros(MAX_RANK))
    sampled: NDArray[np.float64] = field(default_factory=lambda: np.zeros(MAX_RANK))
    _rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def add(self, engine: Engine, tokens: Sequence[int], skip: int = 0) -> None:
        """Measure one text except its first `skip` tokens. The engine's caches are empty afterwards."""
        sampler = Sampler(self.sampling, engine.target.n_vocab)
        engine.reset()
        rows = rows_along(engine.target.context, tokens)
        self.add_along(engine, tokens, (sampler.distribution(row, ()) for row in islice(rows, skip, None)), skip)

    def add_along(
        self, engine: Engine, tokens: Sequence[int], distributions: Iterable[Distribution], skip: int = 0
    ) -> None:
        """`add`, with the target's `distributions` after each of the other tokens known."""
        draft = engine.draft
        assert draft is not None, "only pairs are measured"
        sampler = Sampler(self.sampling, engine.target.n_vocab)
        engine.read_for_draft(tokens)
        for p, row in zip(distributions, draft.rows_along(tokens, skip), strict=False):
            self._count(p, row, sampler)
        engine.reset()

    def _count(self, p: Distribution, draft_row: Logits, sampler: Sampler) -> None:
        self.n_positions += 1
        if self.sampling.temperature == 0:
            chances = positional.greedy(int(p.tokens[0]), draft_row)
            self.match += chances
            self.sampled += chances
            return
        q = sampler.distribution(draft_row, ())
        self.match += positional.shared_noise(p, q, self._rng, _NOISE_DRAWS)
        self.sampled += positional.without_replacement(p, q, self._rng, _REJECTION_DRAWS)

    def vectors(self) -> tuple[list[float], list[float]]:
        """`match` and `sampled` divided by the number of positions, rounded to 4 digits."""
        n = max(self.n_positions, 1)
        return [round(float(p), 4) for p in self.match / n], [round(float(p), 4) for p in self.sampled / n]
