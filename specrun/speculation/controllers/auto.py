"""`auto`: the plan with the best expected rate, corrected by what the run sees (docs/adr/0008)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from specrun.speculation.controllers.arm import Arm, ExpectedPlan, arms_of, most_promising
from specrun.speculation.controllers.stakes import LossBudget, Stakes
from specrun.speculation.method import OFF, Plan
from specrun.speculation.planning.guide import BEHIND, Guide, PassRecord

# Rates are relative to plain decoding's here, and times are counted in plain passes. The constants were chosen in the
# simulations of tests/speculation/controllers.
_AGING = 0.995  # factor on what was seen of a plan after each pass of another plan, so that the prior counts again
_LOOKS = 5  # tokens over which the draft is first only compared with the target, where the loss budget cannot pay for
_KNOWN = 40  # counted nodes from which on drafts are as deep as is expected to pay, however low the loss budget is
# A path may be so many tokens long, and so many times as long as the longest that was accepted: chances of long copies,
# of which few were seen, are believed too soon.
_LEAST_DEEP, _DEEPER = 8, 2.0
_LOSES = 0.985  # a plan is left if its rate, the error included, is below this
_LEAST_PASSES = 6  # passes of a plan before its rate alone decides that it is left
# Plain passes after which their records are learned from, all at once, and another plan may be tried. After every
# pass, when the processor's caches are full of weights, this code would take some hundredths of a millisecond.
_TRIED_EVERY = 16
_LEAST_LEARNED = 8  # passes that teach anything worth keeping


class Auto:
    """Holds the plan with the best expected rate, by prior and observation.

    What passes win or lose, compared with plain decoding, is kept in a loss budget. A plan may be tried while it can
    pay for the plan's next pass, and is left when it is empty and the plan was not seen to win. Trees that pay for
    themselves by more than the error are as large as pays; others are no larger than the loss budget allows. Only the
    speed depends on this. What was seen in one text is the first estimate for another.

    expected: the plans and their rates; without a rate of plain decoding, that is 1.
    guide: pass times, calibration and rate, which the passes of this run correct.
    is_tuned: whether `specrun tune` measured the rates, and not earlier runs, or nobody.
    first: the plan to begin with, as `specrun tune` chose it; None for the one with the best rate that is not only
        hoped for.
    """

    def __init__(
        self, expected: Sequence[ExpectedPlan], guide: Guide, first: Plan | None = None, is_tuned: bool = False
    ) -> None:
        self.guide: Guide = guide
        self._is_tuned = is_tuned
        self._stakes = Stakes(guide, is_tuned)
        self._plain = self._stakes.plain  # seconds of a plain pass
        self._arms = arms_of(expected)
        self._off = self._arms[0]
        self._held = most_promising(self._arms)
        if first is not None:
            self._held = next((arm for arm in self._arms if arm.plan == first), self._off)
        self._loss_budget = LossBudget(is_proven=self._held.is_known and self._held.rate - self._held.error > 1)
        self._since_change, self._tried_again = 0, _TRIED_EVERY  # passes
        self._looks = 0
        self._longest = 0.0  # tokens that a recent pass committed, at most
        self._is_looking = False  # the draft is only compared with what the target writes
        self._n_passes = 0
        self._unread: list[PassRecord] = []  # passes of which nothing was learned yet
        self._expect()
        self._next = self._sized(self._held)

    def plan(self, n_texts: int = 1) -> Plan:
        if n_texts > 1:
            return self._shared()
        return self._next if self.guide.knows_plain else OFF.plan()

    @property
    def needs_draft(self) -> bool:
        return self._held.plan.method.needs_draft and self.guide.knows_plain

    @property
    def held(self) -> Plan:
        """The plan that is followed, with its own bounds."""
        return self._held.plan

    @property
    def is_off(self) -> bool:
        """Whether speculation is off at present."""
        return not self._held.plan.drafts

    def _is_tried(self) -> bool:
        """Whether passes, or `specrun tune`, showed what plans that draft do here."""
        return self._is_tuned or any(arm.passes for arm in self._arms[1:])

    @property
    def gave_up(self) -> bool:
        """Whether there is a draft model that is not used, after passes enough to know what pays."""
        if not self._is_tuned and self._n_passes < _LEAST_LEARNED:
            return False
        is_unused = not self._held.plan.method.needs_draft and any(arm.plan.method.needs_draft for arm in self._arms)
        return is_unused and self._is_tried()

    @property
    def source(self) -> str:
        """Where the rates come from, for people."""
        return "by the profile of this machine" if self._is_tuned else "learned while writing"

    @property
    def has_learned(self) -> bool:
        """Whether there is anything to keep for a later run."""
        self._read()
        return self._n_passes >= _LEAST_LEARNED and bool(self.guide.costs.target.times)

    @property
    def tokens_per_pass(self) -> float:
        """Committed tokens of a recent pass by the plan that is followed."""
        return self._held.tokens / self._held.passes if self._held.passes else 1.0

    @property
    def rates(self) -> tuple[float, float]:
        """Tokens per second that are expected of the plan that is followed, and of plain decoding."""
        self._read()
        plain = self._plain()
        return self._held.estimate()[0] / plain, 1 / plain

    @property
    def knows_rate(self) -> bool:
        """Whether the rate of the plan that is followed was measured, in this run or before, and not only hoped for."""
        return self.guide.knows_plain and (self.is_off or self._held.is_known or self._held.passes > 0)

    @property
    def expected(self) -> list[ExpectedPlan]:
        """The rates of plain decoding and of all plans that were tried, in this run or before, fastest first."""
        self._read()
        plain = self._plain()
        seen = [(arm.plan, *arm.lasting()) for arm in self._arms if arm.passes or arm.is_known]
        found = [ExpectedPlan(plan, rate / plain, error / plain) for plan, rate, error in seen]
        return sorted(found, key=lambda e: -e.tokens_per_second)

    def __str__(self) -> str:
        if not self.is_off:
            return f"{self._held.plan}, {self.source}"
        return f"off, {self.source}" + (", because nothing else pays on this text" if self._is_tried() else "")

    def read_prompt(self, n_tokens: int, seconds: float, n_unread: int) -> None:
        self._read()
        self.guide.read_prompt(n_tokens, seconds)
        self._stakes.n_unread = n_unread
        if self.is_off:
            self._loss_budget.begin_text()
            self._loss_budget.save(seconds / self._plain())
            self._try()  # a text of its own may well be better than the mean of those that were measured
        if self.needs_draft and not self._held.passes and not self._stakes.may_win(self._held):
            self._change(self._off)
        if self.needs_draft:
            self._stakes.n_unread = 0  # it reads the prompt now
        self._next = self._sized(self._held)

    def record(self, record: PassRecord) -> None:
        if record.n_texts > 1:  # pass times and chances only: the rates are those of a text alone
            self._read()
            self.guide.learn(record)
            self._n_passes += record.has_times
            return
        self._unread.append(record)
        # While plain decoding goes on, nothing could change before the last of these passes.
        is_settled = self.is_off and self.guide.knows_plain
        if not (is_settled and (self._since_change + len(self._unread)) % _TRIED_EVERY):
            self._read()

    def _read(self) -> None:
        """Learn from all passes so far."""
        while self._unread:
            self._learn(self._unread.pop(0))

    def _learn(self, record: PassRecord) -> None:
        self._stakes.ctx = record.ctx
        self._n_passes += 1
        knew_plain = self.guide.knows_plain
        is_catching_up = knew_plain and self._held.plan.method.needs_draft and self._stakes.n_unread >= BEHIND
        self.guide.learn(record, has_read=not is_catching_up)
        if knew_plain:
            self._judge(record, is_catching_up)
        elif self.guide.knows_plain:
            self._expect()
            can_pay = self._stakes.can_pay(self._held.plan, self._loss_budget.balance)
            if not (can_pay and self._stakes.may_win(self._held)):
                self._change(self._off)
        self._next = self._sized(self._held)

    def _shared(self) -> Plan:
        """The best of the plans whose trees follow pass times, and so draft as much as pays beside other texts.

        It need not be the plan that is held, because another plan may win where texts share a pass.
        """
        self._read()
        arms = (arm for arm in self._arms if arm.plan.can_shrink)
        return max(arms, key=lambda arm: arm.estimate()[0], default=self._off).plan

    def _judge(self, record: PassRecord, is_catching_up: bool) -> None:
        """Count the pass, and change the plan if another is expected to be faster.

        is_catching_up: whether the draft model had to read before it drafted.
        """
        arm, plain = self._held, self._plain()
        if arm is self._off:
            self._since_change += 1
            self.guide.rate = 1e-3 / plain
            self._stakes.n_unread += record.n_tokens
            self._go_on_plainly(record.seconds)
            return
        self._stakes.n_unread = 0 if arm.plan.method.needs_draft else self._stakes.n_unread + record.n_tokens
        won = record.n_tokens - record.seconds / plain
        self._longest = max(_AGING * self._longest, record.n_tokens)
        self.guide.follow(record)
        if is_catching_up:  # reading is paid once, and tells nothing of the plan
            return
        if self._is_looking:
            self._looks += 1
            self._loss_budget.book(won, arm.deviation())
            return
        self._since_change += 1
        arm.record(record.n_tokens, record.seconds / plain, len(record.tree) > 1)
        self._loss_budget.book(won, arm.deviation())
        self._reconsider()
        if arm is self._held and len(record.tree) == 1 and not arm.plan.method.needs_draft:
            # Draft sources without a guess cost next to nothing, so this is as good as plain decoding.
            self._go_on_plainly(record.seconds)

    def _reconsider(self) -> None:
        """Leave a plan that drafts if it loses, or if another is expected to be faster."""
        rate, error = self._held.estimate()
        # An empty loss budget may be bad luck. Without measured times, what is expected says less than what was seen.
        proven = rate if self._held.is_known else min(rate, self._held.observed)
        is_slow = self._since_change >= _LEAST_PASSES and rate + error < _LOSES
        loses = (self._loss_budget.balance < 0 and proven < 1) or is_slow
        is_free = self._stakes.is_free(self._held)
        if loses and not is_free:
            # Go on with the draft sources alone if the plan has any, because they cost little; else plainly.
            without = self._held.plan.method.without_draft
            rest = next((arm for arm in self._arms if arm.plan.method is without), self._off)
            self._loss_budget.end_plan(sources_go_on=rest is not self._off)
            self._change(rest)
        elif self._since_change >= _LEAST_PASSES:
            others = [arm for arm in self._arms[1:] if arm is not self._held and self._stakes.may_win(arm)]
            best = max([self._held if is_free else self._off, *others], key=lambda arm: arm.estimate()[0])
            if best.estimate()[0] > rate + error:
                self._change(best)

    def _go_on_plainly(self, seconds: float) -> None:
        self._loss_budget.save(seconds / self._plain())
        if self._since_change >= self._tried_again:
            self._tried_again = self._since_change + _TRIED_EVERY
            self._try()

    def _try(self) -> None:
        """Take up the most promising of the plans that may win, if it is known to win or the budget pays for it."""
        arms = [arm for arm in self._arms[1:] if arm is not self._held and self._stakes.may_win(arm)]
        if not arms or not self.guide.knows_plain:
            return
        best = max(arms, key=lambda arm: sum(arm.estimate()))
        rate, error = best.estimate()
        is_known = best.passes > 0 and rate - error > 1
        if is_known or self._stakes.can_pay(best.plan, self._loss_budget.balance):
            self._change(best)

    def _change(self, arm: Arm) -> None:
        for other in self._arms:
            if other is not self._held:
                other.fade(_AGING**self._since_change)
        self._held = arm
        self._since_change, self._tried_again = 0, _TRIED_EVERY
        self._expect()

    def _expect(self) -> None:
        if self.guide.knows_plain:
            arm = self._held
            rate = arm.estimate()[0]
            if arm.plan.method.needs_draft:  # copies may have made most of the rate that is known, and come later
                chain = self.guide.chain_rate(self.guide.calibration.agreement, self._stakes.ctx)
                rate = min(rate, chain) if arm.is_known else chain
            self.guide.expect(max(rate, 1.0) * 1e-3 / self._plain())

    def _sized(self, arm: Arm) -> Plan:
        """The arm's plan. As long as it is not known to win, the loss budget must be able to pay for a pass."""
        plan, self._is_looking = arm.plan, False
        if not plan.drafts:
            return plan
        if plan.can_shrink:
            plan = replace(plan, depth=min(plan.depth, _LEAST_DEEP + int(_DEEPER * self._longest)))
        plain = self._plain()
        rate, error = arm.estimate()
        is_known = (arm.passes > 0 or self._is_tuned) and rate - error > 1
        self.guide.most_lost_ms = math.inf if is_known else max(self._loss_budget.balance, 0.0) * plain * 1e3
        if is_known or not plan.can_shrink or not plan.method.needs_draft:
            return plan
        n_counted = self.guide.calibration.n_counted
        if n_counted >= _KNOWN:
            return plan
        if max(self._looks, n_counted) < _LOOKS and not self.guide.can_lose(self.guide.most_lost_ms, self._stakes.ctx):
            self._is_looking = True
            self.guide.most_lost_ms = -math.inf
            return plan.smallest
        return replace(plan, depth=max(1, min(plan.depth, int(self._loss_budget.balance / 2 / self._stakes.level()))))
