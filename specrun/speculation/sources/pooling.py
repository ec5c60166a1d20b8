"""Chances of guessed tokens: several distributions combined into one, and what the noise of sampling tells about them.

Each expert alone is calibrated; together they say more (docs/adr/0006). If their errors are independent, chances
multiply (a logarithmic opinion pool, or product of experts). The weight of a named token is

    BASE * product over experts of (chance / BASE if the expert names it, else unnamed_factor * rest) ** trust

where rest is the chance that an expert leaves to tokens it does not name. The weight of all tokens that no expert
names is the product of rest ** trust. Chances are weights divided by the sum of all weights. `scripts/bench_sources.py`
measures the effect.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from specrun.sampling import SharedNoise

BASE = 0.25  # about how often a named token comes
_LEAST_REST = 0.02  # least value of `rest`, as no expert is certain
# With this share the chances of 7,555 guesses at T=0.8 fitted best: log loss 0.282 with 0, 0.270 with 0.3, 0.272 with
# 0.5, 0.381 with 1 (embedded pair, the prompts of scripts/bench_sources.py).
_NOISE_SHARE = 0.3
_MOST_OF_SIBLINGS = 0.98  # largest sum of the chances of siblings


@dataclass(frozen=True)
class Expert:
    """The chances that one draft model or source gives to the next token."""

    chances: Mapping[int, float]  # by token
    trust: float = 1.0  # 1 if its errors are independent of those of other experts, less if not
    unnamed_factor: float = 1.0  # factor on `rest` for a token that only other experts name

    @property
    def rest(self) -> float:
        """The chance of all tokens that it does not name."""
        return max(1.0 - sum(self.chances.values()), _LEAST_REST)


def pooled(experts: Sequence[Expert]) -> dict[int, float]:
    """The pooled chance of every named token. Experts without tokens are ignored; a single expert stays as it is."""
    experts = [expert for expert in experts if expert.chances]
    if len(experts) < 2:
        return dict(experts[0].chances) if experts else {}
    named = {token: BASE for expert in experts for token in expert.chances}
    others = 1.0
    for expert in experts:
        rest = expert.rest
        unnamed_factor = (expert.unnamed_factor * rest) ** expert.trust
        for token in named:
            chance = expert.chances.get(token)
            named[token] *= unnamed_factor if chance is None else (chance / BASE) ** expert.trust
        others *= rest**expert.trust
    total = math.fsum(named.values()) + others
    return {token: weight / total for token, weight in named.items()}


def given_noise(chances: Mapping[int, float], noise: SharedNoise, position: int) -> dict[int, float]:
    """The chances that sampling at `position` takes each token, whose noise is known before the pass (`SharedNoise`).

    The target takes the largest of log q + noise. The largest sum of all other tokens has a Gumbel distribution around
    log(1 - q), so a token with noise g is above it with the chance exp(-(1 - q) / q * exp(-g)), whose mean over g is q.

    A calibrated chance is not q, but the mean of the q of many guesses: some are copies, which are certain whatever the
    noise is, and some have no chance with any noise. So only a share of the chance follows the noise.

    chances: by token, regardless of the noise.
    """
    if not chances:
        return {}
    q = np.clip(np.array(list(chances.values())), 1e-9, 1.0 - 1e-9)
    g = noise.gumbel(position, np.array(list(chances), np.int64))
    known = (1.0 - _NOISE_SHARE) * q + _NOISE_SHARE * np.exp(-(1.0 - q) / q * np.exp(-g))
    known *= min(_MOST_OF_SIBLINGS / known.sum(), 1.0)
    return dict(zip(chances, known.tolist(), strict=True))
