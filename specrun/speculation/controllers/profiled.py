"""Following the plan of a profile for as long as it is faster than plain decoding (docs/adr/0008)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from specrun.speculation.method import OFF
from specrun.speculation.plan import Plan
from specrun.speculation.planning.guide import Guide
from specrun.speculation.record import PassRecord

# All chosen by hand. A rate is committed tokens per second.
_DECAY = 0.94  # factor on the rate's tokens and seconds after each pass, so that about the last 16 passes count
_LEAST_PASSES = 6  # passes before a plan may be left
_LOSES = 0.97  # a plan is left below this share of plain decoding's rate
_PROBE_PASSES = 5  # passes of a probe
_PROBE_SHARE = 0.01  # share of all time that probes may lose
_FIRST_HOLD = 32  # passes without the plan before its first probe
_HOPELESS = 0.6  # a plan is never probed if its predicted rate is below this share of plain decoding's
_PREDICTED_TOKENS = 8.0  # the predicted rate counts as much as this many measured tokens at first
_NEAR = 2.0  # a plan is not checked above this multiple of plain decoding's rate
_CHECKS = (16, 32, 64)  # passes before the first, the second and every further check
_SURPRISING = 1.25  # the next check is early if a check takes longer than expected by this factor, or shorter
_SOON = 3  # passes before an early check
_CONFIRMED = 4  # plain passes after which the time of plain decoding is known


@dataclass
class _Phase:
    """What a plan has done since it was taken up.

    predicted: its predicted rate divided by plain decoding's; 0 if nothing is predicted.
    tokens: committed tokens of the last passes.
    seconds: time of the last passes.
    passes: number of passes.
    lost: seconds lost compared with plain decoding.
    """

    predicted: float = 0.0
    tokens: float = 0.0
    seconds: float = 0.0
    passes: int = 0
    lost: float = 0.0

    def record(self, record: PassRecord, plain: float, counts: bool) -> None:
        """Add a pass. plain: plain decoding's rate. counts: whether the pass counts for this plan's rate."""
        self.passes += 1
        self.lost += record.seconds - record.n_tokens / plain
        if counts:
            self.tokens = _DECAY * self.tokens + record.n_tokens
            self.seconds = _DECAY * self.seconds + record.seconds

    def rate(self, plain: float) -> float:
        """The rate of the last passes, averaged with the predicted one while these are few."""
        tokens, seconds = self.tokens, self.seconds
        if self.predicted:
            weight = _PREDICTED_TOKENS * _DECAY**self.passes
            tokens, seconds = tokens + weight, seconds + weight / (self.predicted * plain)
        return tokens / seconds if seconds else plain


class ProfiledPlan:
    """Follows `plan`, leaves it where it does not pay, and tries it again from time to time.

    A plan pays if the rate of its last passes is higher than plain decoding's, which follows from the cost tables. The
    passes keep these up to date. Where the two rates are close, a pass without drafting now and then checks the time of
    plain decoding. After a plan was left, the first passes show whether that was right. Later, probes of a few passes
    follow, each after a hold that lasts until the lost time is a small share of it. A plan with a draft model and draft
    sources is first replaced by the sources alone, and by plain decoding if these lose as well. Only the speed depends
    on the choices.

    plan: the plan to follow; `OFF.plan()` if no plan pays by the profile.
    predicted: the rate that the profile predicts for `plan`, in tokens per second.
    guide: cost tables and calibration.
    other: the best plan that drafts, which is probed if `plan` is off; None for none.
    other_predicted: the rate that the profile predicts for `other`.
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
        """Whether speculation is off at present."""
        return not self._ladder[self._rung].depth

    def __str__(self) -> str:
        text = f"{self.plan}, by the profile of this machine"
        if self._ladder[self._rung] == self.plan:
            return text
        if self.is_off:
            return f"{text}; off now, because it does not pay on this text"
        if self._rung:
            return f"{text}; draft sources alone now, because the draft model does not pay on this text"
        return f"{text}; {self._ladder[0]} now, because it pays on this text"

    def _plain_rate(self, ctx: int) -> float:
        """The present rate of plain decoding after `ctx` tokens."""
        return 1e3 / self.guide.plain_ms(ctx)

    def record(self, record: PassRecord) -> None:
        """Learn from a pass that followed `current`."""
        expected = self.guide.plain_ms(record.ctx)
        self.guide.learn(record)
        plain = self._plain_rate(record.ctx)
        if self._is_check:
            self._is_check = False
            if not 1 / _SURPRISING < record.seconds * 1e3 / expected < _SURPRISING:
                self._since_check = self._checks[0] - _SOON
            return
        before = self._rung
        if self.is_off:
            self.guide.rate = plain / 1e3
        else:
            self._judge(record, plain)
        if before and before <= self._rung:
            self._rest(record, plain)

    def _judge(self, record: PassRecord, plain: float) -> None:
        """Leave the plan of this pass if it does not pay, and decide whether the next pass is a check."""
        # The first pass of a probe does not count for the rate, because the draft may first have to read much text.
        self._phase.record(record, plain, counts=not (self._is_probe and not self._phase.passes))
        rate = self._phase.rate(plain)
        self.guide.follow(record)
        if self._is_probe:
            self._judge_probe(rate, plain)
        elif self._phase.passes >= _LEAST_PASSES and rate < _LOSES * plain:
            self._leave(plain)
        elif not self._rung:
            self._since_check = 0 if record.n_target <= self.guide.costs.target.pass_sizes[1] else self._since_check + 1
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

    def _rest(self, record: PassRecord, plain: float) -> None:
        """After a pass without the plan, return to it if leaving it was wrong, or begin a probe if one is due."""
        self._rest_passes += 1
        self._rest_seconds += record.seconds
        if self._rest_passes == _CONFIRMED and self._left_rate > plain:
            self._rung = 0
            self._phase = _Phase(self._left_rate / plain)
            self.guide.expect(self._left_rate / 1e3)
        elif self._may_probe and self._rest_passes >= _FIRST_HOLD and self._rest_seconds >= self._hold_seconds:
            self._rung = 0
            self._is_probe = True
            self._phase = _Phase()


def _ladder(plan: Plan | None) -> tuple[Plan, ...]:
    """The plan and those that replace it, one after the other, where it does not pay; the last is plain decoding."""
    if plan is None:
        return (OFF.plan(),)
    without_draft = plan.method.without_draft
    return (plan, *([plan.follows(without_draft)] if without_draft else []), OFF.plan())


class ByTemperature:
    """The plans of a profile, one for each measured temperature. A generation follows the one nearest to its own.

    now: the plan of the present generation, or of the last one.
    """

    def __init__(self, plans: Mapping[float, ProfiledPlan]) -> None:
        self._plans = dict(plans)
        self.now = next(iter(self._plans.values()))

    @property
    def current(self) -> Plan:
        """The plan of the next pass."""
        return self.now.current

    @property
    def guide(self) -> Guide:
        return self.now.guide

    def begin(self, temperature: float) -> None:
        """Change to the plan for this temperature."""
        self.now = self._plans[nearest(temperature, list(self._plans))]

    def record(self, record: PassRecord) -> None:
        """Learn from a pass that followed `current`."""
        self.now.record(record)

    def __str__(self) -> str:
        return str(self.now)


def nearest(temperature: float, measured: list[float]) -> float:
    """The nearest measured temperature: 0 for 0 and another one for others if possible, because 0 differs most."""
    return min(measured, key=lambda t: ((t == 0) != (temperature == 0), abs(t - temperature)))
