"""The plan of a profile, followed for as long as it keeps what the profile promised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from specrun.speculation.method import OFF
from specrun.speculation.plan import Plan
from specrun.speculation.planning.guide import Guide
from specrun.speculation.record import PassRecord

_DECAY = 0.94  # weight of what was known of the rate, per pass: about the last 16 passes count
_LEAST_PASSES = 6  # before a plan can be judged
_LOSES = 0.97  # share of plain decoding's rate below which a plan is left
_PROBE_PASSES = 5
_PROBE_SHARE = 0.01  # of all time may be lost to probes
_FIRST_HOLD = 32  # passes
_HOPELESS = 0.6  # predicted share of plain decoding's rate below which a plan is never probed
_PROMISED = 8.0  # tokens that what was expected of the plan weighs in its rate at first
_NEAR = 2.0  # times plain decoding's rate; a plan that is faster needs no comparing with it
_CHECKS = (16, 32, 64)  # passes between passes over one token, the last going on
_SURPRISING = 1.25  # times what was expected of a plain pass; the next one follows soon
_SOON = 3  # passes
_CONFIRMED = 4  # plain passes of a hold after which it is known what plain decoding takes


@dataclass
class _Phase:
    """What a plan has done since it was taken up. promise: times plain decoding's rate that is expected; 0 if nothing
    is. tokens, seconds: of the last passes. lost: seconds, against plain decoding.
    """

    promise: float = 0.0
    tokens: float = 0.0
    seconds: float = 0.0
    passes: int = 0
    lost: float = 0.0

    def record(self, step: PassRecord, plain: float, counts: bool) -> None:
        """A pass is over. plain: tokens a second of plain decoding. counts: whether it says what others will take."""
        self.passes += 1
        self.lost += step.seconds - step.n_tokens / plain
        if counts:
            self.tokens = _DECAY * self.tokens + step.n_tokens
            self.seconds = _DECAY * self.seconds + step.seconds

    def rate(self, plain: float) -> float:
        """Tokens a second of the last passes, and of what was promised as long as these are few."""
        tokens, seconds = self.tokens, self.seconds
        if self.promise:
            promised = _PROMISED * _DECAY**self.passes
            tokens, seconds = tokens + promised, seconds + promised / (self.promise * plain)
        return tokens / seconds if seconds else plain


class ProfiledPlan:
    """Follows `plan`, leaves it where it does not pay, and looks now and then whether it pays again.

    Whether it pays is judged by the measured rate of the last passes against what plain decoding takes: by the cost
    tables, kept up to date by the passes themselves, of which one is plain now and then where the two are near. When
    the plan is left, the next passes show whether that was right. While it rests, a few passes of it are tried after
    each hold; holds last until what was lost is a small share of their time. A plan with draft sources is left for
    these alone first, which cost nothing as long as they have no guess, and for plain decoding if that loses, too.

    plan: what to follow; `OFF.plan()` if the profile says that nothing pays, with `other`, the best that drafts, to
    be looked at now and then. predicted: tokens a second that the profile expects of `plan`. other_predicted: of
    `other`.
    The text does not depend on any of this, only the speed does.
    """

    def __init__(self, plan: Plan, predicted: float, guide: Guide, other: Plan | None = None,
                 other_predicted: float = 0.0) -> None:  # fmt: skip
        self.plan = plan
        self.predicted = predicted
        self.guide: Guide = guide
        plain = self._plain_rate(0)
        rate = predicted if plan.depth else other_predicted
        self._ladder = _ladder(plan if plan.depth else other)
        self._rung = 0 if plan.depth else min(1, len(self._ladder) - 1)
        self._may_probe = len(self._ladder) > 1 and rate > _HOPELESS * plain
        self._is_probe = self._is_check = False
        self._checks = [*_CHECKS]
        self._since_check = 0
        self._left_rate = 0.0
        self._rest_passes, self._rest_seconds = 0, 0.0
        self._hold_seconds = _FIRST_HOLD / plain
        self._phase = _Phase(rate / plain if plan.depth else 1.0)
        self.guide.expect(max(rate if plan.depth else 0.0, plain) / 1e3)

    @property
    def current(self) -> Plan:
        """The plan of the next pass."""
        return OFF.plan() if self._is_check else self._ladder[self._rung]

    @property
    def is_off(self) -> bool:
        """Whether speculation is off now."""
        return not self._ladder[self._rung].depth

    def __str__(self) -> str:
        text = f"{self.plan}, by the profile of this machine"
        if self._ladder[self._rung] == self.plan:
            return text
        if self.is_off:
            return f"{text}; off now, as it does not pay on this text"
        if self._rung:
            return f"{text}; from the text alone now, as a draft model does not pay on it"
        return f"{text}; {self._ladder[0]} now, as it pays on this text"

    def _plain_rate(self, ctx: int) -> float:
        """Tokens a second of plain decoding, as things are now."""
        return 1e3 / self.guide.plain_ms(ctx)

    def record(self, step: PassRecord) -> None:
        """A pass by `current` is over."""
        expected = self.guide.plain_ms(step.ctx)
        self.guide.learn(step)
        plain = self._plain_rate(step.ctx)
        if self._is_check:
            self._is_check = False
            if not 1 / _SURPRISING < step.seconds * 1e3 / expected < _SURPRISING:
                self._since_check = self._checks[0] - _SOON
            return
        before = self._rung
        if self.is_off:
            self.guide.rate = plain / 1e3
        else:
            self._judge(step, plain)
        if before and before <= self._rung:
            self._rest(step, plain)

    def _judge(self, step: PassRecord, plain: float) -> None:
        """Whether the plan of this pass pays."""
        # The first pass after a hold does not count: the draft had text to catch up with.
        self._phase.record(step, plain, counts=not (self._is_probe and not self._phase.passes))
        rate = self._phase.rate(plain)
        self.guide.follow(step)
        if self._is_probe:
            self._judge_probe(rate, plain)
        elif self._phase.passes >= _LEAST_PASSES and rate < _LOSES * plain:
            self._leave(plain)
        elif not self._rung:
            self._since_check = 0 if step.n_target == 1 else self._since_check + 1
            self._is_check = rate < _NEAR * plain and self._is_check_due()

    def _is_check_due(self) -> bool:
        if self._since_check < self._checks[0]:
            return False
        self._since_check = 0
        self._checks = self._checks[1:] or self._checks
        return True

    def _judge_probe(self, rate: float, plain: float) -> None:
        if self._phase.passes <= 1:
            return
        if self._phase.passes < _PROBE_PASSES and rate > 0.5 * plain:
            return
        self._is_probe = False
        if rate < plain:
            self._leave(plain)

    def _leave(self, plain: float) -> None:
        if not self._rung:
            self._left_rate = self._phase.tokens / self._phase.seconds
            self._rest_passes, self._rest_seconds = 0, 0.0
            self._hold_seconds = max(self._phase.lost, 0.0) / _PROBE_SHARE
        self._rung += 1
        self._phase = _Phase(1.0)
        self.guide.expect(plain / 1e3)

    def _rest(self, step: PassRecord, plain: float) -> None:
        """A pass without the plan is over: was it right to leave it, or is it time to look at it again?"""
        self._rest_passes += 1
        self._rest_seconds += step.seconds
        if self._rest_passes == _CONFIRMED and self._left_rate > plain:
            self._rung = 0
            self._phase = _Phase(self._left_rate / plain)
            self.guide.expect(self._left_rate / 1e3)
        elif self._may_probe and self._rest_passes >= _FIRST_HOLD and self._rest_seconds >= self._hold_seconds:
            self._rung = 0
            self._is_probe = True
            self._phase = _Phase()


def _ladder(plan: Plan | None) -> tuple[Plan, ...]:
    """The plan, and what takes its place where it does not pay, the last being plain decoding."""
    if plan is None:
        return (OFF.plan(),)
    without_draft = plan.method.without_draft
    return (plan, *([plan.follows(without_draft)] if without_draft else []), OFF.plan())


class ByTemperature:
    """A plan of a profile for each temperature that was measured; a generation follows the one nearest to its own."""

    def __init__(self, plans: Mapping[float, ProfiledPlan]) -> None:
        self._plans = dict(plans)
        self._now = next(iter(self._plans.values()))

    @property
    def now(self) -> ProfiledPlan:
        """What the generation in progress, or the last one, follows."""
        return self._now

    @property
    def current(self) -> Plan:
        """The plan of the next pass."""
        return self._now.current

    @property
    def guide(self) -> Guide:
        return self._now.guide

    def begin(self, temperature: float) -> None:
        """A generation at this temperature begins."""
        self._now = self._plans[nearest(temperature, list(self._plans))]

    def record(self, step: PassRecord) -> None:
        """A pass by `current` is over."""
        self._now.record(step)

    def __str__(self) -> str:
        return str(self._now)


def nearest(temperature: float, measured: list[float]) -> float:
    """The measured temperature that says most of another: greedy for greedy, sampled for sampled, if there is one."""
    return min(measured, key=lambda t: ((t == 0) != (temperature == 0), abs(t - temperature)))
