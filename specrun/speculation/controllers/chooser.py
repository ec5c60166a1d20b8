"""Choosing the plan of the next pass: always the same one, or the fastest by measurement (docs/adr/0008)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from specrun.speculation.plan import Plan
from specrun.speculation.planning.guide import Guide
from specrun.speculation.record import PassRecord

# All chosen by hand. A rate is committed tokens per second.
_TRIAL_PASSES = 3  # measured passes of a trial
_PROMISING = 0.8  # a trial ends early if its rate is below this share of the winner's
_REMEMBERED = 0.5  # factor on a plan's measured tokens and seconds when its next trial begins
_SHORTEST_HOLD = 32  # passes of the winner between trials, at least
_TRIAL_SHARE = 0.015  # share of all time that trials may lose
_DECAY = 0.96  # factor on a plan's tokens and seconds after each pass, so that about the last 25 passes count
_DROP = 0.75  # all plans are tried again when the winner's rate falls below this share of what it was when it won


class PlanChooser(Protocol):
    """Chooses the plan of every pass, and learns from what each pass brought."""

    @property
    def current(self) -> Plan:
        """The plan of the next pass."""
        ...

    @property
    def guide(self) -> Guide | None:
        """Cost tables and calibration for adaptive plans; None without a profile."""
        ...

    def begin(self, temperature: float) -> None:
        """Learn that a generation at this temperature begins."""
        ...

    def record(self, record: PassRecord) -> None:
        """Learn from a pass that followed `current`."""
        ...


@dataclass(frozen=True)
class FixedPlan:
    """One plan for every pass."""

    current: Plan
    guide: Guide | None = None

    def begin(self, temperature: float) -> None:
        """Changes nothing."""

    def record(self, record: PassRecord) -> None:
        """Let the guide learn from the pass."""
        if self.guide:
            self.guide.learn(record)
            self.guide.follow(record)

    def __str__(self) -> str:
        return str(self.current)


@dataclass
class _Arm:
    """One plan, with the committed tokens and the seconds of its recent passes."""

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
    """Tries each plan for a few passes, then holds the fastest by measured tokens per second.

    After a hold, one of the other plans is tried again. A hold lasts until the time that the trials before it lost,
    compared with the winner's rate, is a small share of all time. So slow plans are tried rarely. When the winner
    becomes much slower than when it won, all plans are tried again at once. Only the speed depends on the choices.
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
        """The fastest plan so far; None until every plan was tried."""
        return self._winner.plan if self._winner else None

    @property
    def rates(self) -> dict[Plan, float]:
        """Tokens per second of every plan when the winner was chosen; empty until every plan was tried."""
        return dict(self._rates)

    def __str__(self) -> str:
        rates = sorted(self.rates.items(), key=lambda item: -item[1])
        measured = "; ".join(f"{plan} {rate:.1f} tokens/s" for plan, rate in rates)
        return f"auto ({measured})" if measured else "auto"

    def begin(self, temperature: float) -> None:
        """Changes nothing: rates measured at one temperature are the first estimate for another."""

    def record(self, record: PassRecord) -> None:
        """Learn from a pass that followed `current`."""
        n_tokens, seconds = record.n_tokens, record.seconds
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
            # The text has changed, so the rates measured before do not count any more.
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
        # The first pass of a trial does not count, because the draft may first have to read much text.
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
