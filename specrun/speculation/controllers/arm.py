"""What is expected of a plan that `auto` may follow, and what its recent passes brought."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from specrun.speculation.method import OFF, Plan

# Half and twice of `_TEXTS`, `_COPIES` and the passes of `_DECAY` change the mean rate on two simulated machines by 1 %
# (scripts/bench_machines.py, code and prose at T=0.8), which is chance.
_DECAY = 0.96  # factor on a plan's observations after each of its passes, so that about the last 25 count
_TEXTS = 0.15  # standard deviation of a plan's rate from text to text, as a share of the rate
_COPIES = 0.25  # the same with draft sources, because some texts repeat themselves and others never do
# Standard error of a rate that rests on one pass, as a share, where the tokens of passes do not vary: 2 % after 25.
_DOUBT = 0.1
_CAUTION = 0.5  # standard errors below its expected rate by which a plan that nobody has run here yet is judged
_FEW = 4.0  # passes that the expected scatter of their tokens counts as
_EARLIER = 100.0  # tokens that the rate of earlier runs counts as in what is kept: a text of 256 then counts for 0.72
_SHOT = 0.3  # least variance of the tokens of a pass with a tree: a few equal ones do not prove that all are

# The rate of a plan of which nothing is known, relative to plain decoding's, and its standard error, by whether it uses
# a draft model and whether it uses draft sources. Chosen in the simulations of tests/speculation/controllers.
_UNTRIED = {(True, True): (1.3, 0.1), (True, False): (1.15, 0.1), (False, True): (1.05, 0.05)}


@dataclass(frozen=True)
class ExpectedPlan:
    """A plan, and the rate that measurements let expect of it."""

    plan: Plan
    tokens_per_second: float  # its expected rate
    error: float  # the standard error of that rate, in tokens per second
    is_known: bool = True  # whether it was measured, by `specrun tune` or by earlier runs


def untried(plans: Sequence[Plan], plain: float = 1.0) -> list[ExpectedPlan]:
    """What is expected of plans of which nothing is known. plain: tokens per second of plain decoding."""
    rates = [(plan, *_UNTRIED[plan.method.needs_draft, bool(plan.method.sources)]) for plan in plans if plan.drafts]
    return [ExpectedPlan(plan, rate * plain, error * plain, False) for plan, rate, error in rates]


@dataclass
class Arm:
    """One plan: its prior, and sums over its recent passes."""

    plan: Plan
    rate: float  # expected rate, relative to plain decoding's
    error: float  # its standard error
    is_known: bool = False  # whether it was measured before this run
    passes: float = 0.0
    open: float = 0.0  # passes that could have committed more than one token
    tokens: float = 0.0
    time: float = 0.0  # in plain passes, as long as those were just then
    squares: tuple[float, float, float] = (0.0, 0.0, 0.0)  # of tokens, of tokens * time, of time
    whole: tuple[float, float] = (0.0, 0.0)  # tokens and time of all its passes

    def record(self, n_tokens: int, time: float, is_open: bool) -> None:
        """Add a pass to the sums. time: plain passes. is_open: whether it could have committed more than one token."""
        self.fade(_DECAY)
        self.passes += 1
        self.open += is_open
        self.tokens += n_tokens
        self.time += time
        tt, ts, ss = self.squares
        self.squares = (tt + n_tokens**2, ts + n_tokens * time, ss + time**2)
        self.whole = (self.whole[0] + n_tokens, self.whole[1] + time)

    def fade(self, share: float) -> None:
        self.passes *= share
        self.open *= share
        self.tokens *= share
        self.time *= share
        tt, ts, ss = self.squares
        self.squares = (tt * share, ts * share, ss * share)

    def deviation(self) -> float:
        """Standard deviation of a pass's tokens from those that its time lets expect."""
        if not self.passes:
            return 0.0
        rate = self.observed
        tt, ts, ss = self.squares
        return math.sqrt((max(tt - 2 * rate * ts + rate**2 * ss, 0.0) + _SHOT * self.open) / self.passes)

    @property
    def observed(self) -> float:
        """The rate of its recent passes; 0 if there were none."""
        return self.tokens / self.time if self.passes else 0.0

    def lasting(self) -> tuple[float, float]:
        """The rate of all its passes and of earlier runs, for later runs, and its standard error. Recent passes alone
        would tell of the end of a text, which often repeats itself.
        """
        n_tokens, time = self.whole
        if not time:
            return self.prior()  # it becomes less certain, so that one day it is tried again
        earlier = _EARLIER if self.is_known else 0.0
        return (n_tokens + earlier) / (time + earlier / self.rate), self.estimate()[1]

    def prior(self) -> tuple[float, float]:
        """The rate before any observation, and its standard error."""
        from_text_to_text = 0.0 if not self.plan.drafts else _COPIES if self.plan.method.sources else _TEXTS
        return self.rate, math.hypot(self.error, from_text_to_text * self.rate)

    def estimate(self) -> tuple[float, float]:
        """The rate by prior and observations, and its standard error."""
        rate, error = self.prior()
        if not self.passes:
            return rate, error
        observed = self.observed
        # Few passes do not show how much tokens vary from pass to pass; accepted lengths are about geometric.
        expected = max(rate * self.time / self.passes, 1.0)
        few = _FEW if self.is_known else 0.0  # of a plan that nobody measured, what is seen is all there is
        variance = self.passes * self.deviation() ** 2 + few * expected * (expected - 1)
        deviation = math.sqrt(variance / (self.passes + few))
        observed_error = deviation * math.sqrt(self.passes) / self.time
        observed_error = math.hypot(observed_error, _DOUBT * observed / math.sqrt(self.passes))
        weight = error**2 / (error**2 + observed_error**2)
        return rate + weight * (observed - rate), math.sqrt(weight) * observed_error


def arms_of(expected: Sequence[ExpectedPlan]) -> list[Arm]:
    """An arm of plain decoding, and one of each plan that drafts, those without a draft model first."""
    plain = next((e.tokens_per_second for e in expected if not e.plan.drafts), 1.0)
    arms = [Arm(e.plan, e.tokens_per_second / plain, e.error / plain, e.is_known) for e in expected if e.plan.drafts]
    arms.sort(key=lambda arm: arm.plan.method.needs_draft)
    return [Arm(OFF.plan(), 1.0, 0.0, True), *arms]


def most_promising(arms: Sequence[Arm]) -> Arm:
    """The arm with the best rate that is not only hoped for. arms: as from `arms_of`; the first, plain decoding, stays
    where no other is better.
    """
    return max(arms, key=lambda arm: arm.rate - _CAUTION * arm.error)
