"""Rows of a profile: what was predicted of each plan, what it did when it was run, and which settings were tried."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specrun.hardware.residency import RingSettings
from specrun.speculation.method import Method
from specrun.speculation.planning.pass_sizes import PassSizes
from specrun.speculation.registry import METHODS


@dataclass(frozen=True)
class PredictionRow:
    """What a plan is predicted to do, by a replay over the calibration texts."""

    plan: str  # the plan's name
    method: str  # the name of its method
    budget: int  # nodes of its trees
    depth: int  # drafted tokens on a path
    tokens_per_second: float
    tokens_per_pass: float
    accepted: list[int]  # passes by accepted length, from 1 on
    error: float  # standard error of the rate, tokens per second


@dataclass(frozen=True)
class ValidationRow:
    """What a plan did when it was run on texts that it was not chosen on."""

    plan: str  # the plan's name
    method: str  # the name of its method
    budget: int  # nodes of its trees
    depth: int  # drafted tokens on a path
    temperature: float
    predicted: float  # tokens per second
    measured: float  # tokens per second
    predicted_tokens_per_pass: float
    measured_tokens_per_pass: float
    predicted_error: float  # standard error, tokens per second
    measured_error: float  # standard error, tokens per second


@dataclass(frozen=True)
class TriedSettings:
    """Settings of llama.cpp that were tried on the target."""

    name: str
    ms: dict[int, float]  # milliseconds of a pass, by its tokens
    exact_sizes: PassSizes | None  # passes of these sizes give a token the same bits; None if that was not compared
    score: float  # answered tokens per millisecond, see `specrun.tuning.settings_trials`
    prompt_ms: float  # milliseconds to read a token of a prompt


@dataclass(frozen=True)
class TriedRing:
    """A way to read streamed weights that was tried."""

    ring: RingSettings
    ms: dict[int, float]  # milliseconds of a pass, by its tokens


def best_by_size(rows: Sequence[PredictionRow], is_wanted: Callable[[Method], bool]) -> dict[int, float]:
    """The highest predicted tokens per second among the plans of the wanted methods, by nodes of the tree."""
    best: dict[int, float] = {}
    for row in rows:
        if is_wanted(METHODS[row.method]):
            best[row.budget] = max(best.get(row.budget, 0.0), row.tokens_per_second)
    return best
