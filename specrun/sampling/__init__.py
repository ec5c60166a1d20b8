"""From logits to a token: penalties, filters, temperature, and the noise that target and draft share. numpy only."""

from specrun.sampling.adjustments import NO_TOKEN, Constraint, SamplingParameters
from specrun.sampling.noise import SharedNoise
from specrun.sampling.sampler import CandidateRows, Candidates, Distribution, Sampler

__all__ = [
    "NO_TOKEN",
    "CandidateRows",
    "Candidates",
    "Constraint",
    "Distribution",
    "Sampler",
    "SamplingParameters",
    "SharedNoise",
]
