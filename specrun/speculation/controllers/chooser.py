"""Which plan the next pass follows: always the same, or the one that is measured to be fastest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from specrun.speculation.plan import Plan
from specrun.speculation.planning.guide import Guide
from specrun.speculation.record import PassRecord

_TRIAL_PASSES = 3
_PROMISING = 0.8  # share of the winner's rate that the first pass of a trial must reach for the trial to go on
_REMEMBERED = 0.5  # share of what is known of a plan that counts on in its next trial
_SHORTEST_HOLD = 32  # passes
_TRIAL_SHARE = 0.015  # of all time may be lost to trials
_DECAY = 0.96  # weight of what was known, per pass: about the last 25 passes count
_DROP = 0.75  # share of its rate at election below which the winner is put to the test at once


class PlanChooser(Protocol):
    """Names the plan of every pass, and is told what the pass brought."""

    @property
    def current(self) -> Plan: ...

    @property
    def guide(self) -> Guide | None:
        """What an adaptive plan is weighed with, if there may be one."""
        ...

    def begin(self, temperature: float) -> None:
        """A generation at this temperature begins."""
        ...

    def record(self, step: PassRecord) -> None:
        """A pass by `current` is over."""
        ...


@dataclass(frozen=True)
class FixedPlan:
    """One plan for every pass."""

    current: Plan
    guide: Guide | None = None

    def begin(self, temperature: float) -> None:
        """Changes nothing."""

    def record(self, step: PassRecord) -> None:
        """Lets the guide learn from the pass, if there is one; the plan stays."""
        if self.guide:
            self.guide.learn(step)
            self.guide.follow(step)

    def __str__(self) -> str:
        return str(self.current)


@dataclass
class _Arm:
    """One plan and the recent tokens and seconds of its passes."""

    plan: Plan
    tokens: float = 0.0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    def record(self, n_tokens: int, seconds: float) -> None:
        self.tokens = _DECAY * self.tokens + n_tokens
        self.seconds = _DECAY * self.seconds + seconds

    def fade(self, share: float) -> None:
        self.tokens *= share
        self.seconds *= share


class FastestPlan:
    """Tries each plan for a few passes, then holds the fastest by measured tokens a second.

    After a hold one of the others is tried again. A hold lasts until what the trials before it lost, against having
    gone on with the winner, is a small share of its time, so slow plans are tried rarely. When the winner becomes much
    slower than when it was chosen, all are tried at once.
    The text does not depend on any of this, only the speed does.
    """

    guide = None

    def __init__(self, plans: Sequence[Plan]) -> None:
        self._arms = [_Arm(plan) for plan in plans]
        self._winner: _Arm | None = None
        self._rates: dict[Plan, float] = {}
        self._next_other = 0
        self._is_warming_up = False
        self._hold_seconds = 0.0
        self._begin_trials(self._arms)

    @property
    def current(self) -> Plan:
        """The plan of the next pass."""
        return self._running.plan

    @property
    def winner(self) -> Plan | None:
        """The fastest plan so far, or None until each was tried."""
        return self._winner.plan if self._winner else None

    @property
    def rates(self) -> dict[Plan, float]:
        """Tokens a second of every plan when the winner was chosen; empty until each was tried."""
        return dict(self._rates)

    def __str__(self) -> str:
        rates = sorted(self.rates.items(), key=lambda item: -item[1])
        measured = "; ".join(f"{plan} {rate:.1f} tokens/s" for plan, rate in rates)
        return f"auto ({measured})" if measured else "auto"

    def begin(self, temperature: float) -> None:
        """Changes nothing: what was measured at one temperature is the first guess at another."""

    def record(self, step: PassRecord) -> None:
        """A pass by `current` is over."""
        n_tokens, seconds = step.n_tokens, step.seconds
        self._phase_tokens += n_tokens
        self._phase_seconds += seconds
        if self._is_warming_up:
            self._is_warming_up = False
            return
        self._left -= 1
        self._running.record(n_tokens, seconds)
        if self._trials:
            if self._left == 0 or self._is_hopeless():
                self._end_trial()
        elif self._winner and self._winner.rate < _DROP * self._rates[self._winner.plan]:
            # What is known of any of them belongs to another kind of text by now.
            self._winner = None
            for arm in self._arms:
                arm.fade(0)
            self._begin_trials(self._arms)
        elif self._left <= 0 and self._phase_seconds >= self._hold_seconds:
            others = [arm for arm in self._arms if arm is not self._winner]
            self._next_other = (self._next_other + 1) % len(others)
            self._begin_trials([others[self._next_other]])

    def _begin_trials(self, arms: list[_Arm]) -> None:
        self._trials = list(arms)
        self._phase_tokens, self._phase_seconds = 0, 0.0
        self._begin_trial()

    def _begin_trial(self) -> None:
        self._running = self._trials[0]
        self._running.fade(_REMEMBERED)
        self._left = _TRIAL_PASSES
        # The first pass of a trial is not counted: the draft may have much text to catch up with.
        self._is_warming_up = self._running.plan.depth > 0

    def _is_hopeless(self) -> bool:
        return self._winner is not None and self._running.rate < _PROMISING * self._winner.rate

    def _end_trial(self) -> None:
        self._trials.pop(0)
        if self._trials:
            self._begin_trial()
            return
        self._winner = self._running = max(self._arms, key=lambda arm: arm.rate)
        self._rates = {arm.plan: arm.rate for arm in self._arms}
        lost = self._phase_seconds - self._phase_tokens / self._winner.rate
        self._hold_seconds = lost / _TRIAL_SHARE
        self._left = _SHORTEST_HOLD
        self._phase_tokens, self._phase_seconds = 0, 0.0
