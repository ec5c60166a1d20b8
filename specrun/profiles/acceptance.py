"""How many of the draft's tokens the target accepts at one temperature."""

from __future__ import annotations

from dataclasses import dataclass

from specrun.speculation.planning.calibration import Calibration


@dataclass(frozen=True)
class Acceptance:
    """What `specrun tune` measured along texts that the target wrote at one temperature."""

    temperature: float
    calibration: Calibration
    positional: list[float]  # p_k: the chance that the k-th candidate is accepted, none before it, by sample and match
    sampled: list[float]  # the same of the k-th draw without replacement, by Sequoia's rule
    n_positions: int  # positions of the texts that the calibration counts
