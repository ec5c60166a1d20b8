"""What the plans of `auto` may cost and win here, by what passes take, and what trying them may cost in all."""

from __future__ import annotations

from specrun.speculation.controllers.arm import Arm
from specrun.speculation.method import Plan
from specrun.speculation.planning.guide import Guide

# Times are counted in plain passes. The constants were chosen in the simulations of tests/speculation/controllers; by
# them `auto` loses at most 3 % of 96 tokens where nothing pays.
_FEWEST_LOOKS = 3  # draft passes that the loss budget must pay for before a plan is taken up
_READING = 0.3  # of a draft pass over one token, for each token that the draft reads with many others
_USUAL_CHANCE = 0.8  # that a token of a good draft is right, for whether it may win at all
_WORTH_READING = 10.0  # plain passes that this may take for a plan that may be twice as fast as plain decoding
_PAID_BACK = 20.0  # the same where nothing is known but what passes take; a draft mostly takes longer than expected
_SOURCES_MS = 0.3  # at most, of our own work in a pass with draft sources
_UNSEEN = 0.01  # share of a plain pass that nobody sees
_STAKE = 1.1  # plain passes that may be lost before anything is known
_SHARE = 0.01  # share of the time without speculation that may be lost by trying plans
_MOST_SAVED = 4.0  # plain passes to which that share adds up at most
_DEVIATIONS = 4.0  # a plan that wins may then lose this many standard deviations of a pass before it is left,
_MOST_WON = 8.0  # and at most so many plain passes
_SOURCES_STAKE = 0.3  # plain passes that draft sources alone may lose after a plan with a draft model was left


class Stakes:
    """What plans may cost and win.

    guide: pass times. is_tuned: whether `specrun tune` measured them. ctx, n_unread: tokens of the text that is
    written, and of those that the draft model has not read, which the caller keeps true.
    """

    def __init__(self, guide: Guide, is_tuned: bool) -> None:
        self.ctx = self.n_unread = 0
        self._guide = guide
        self._is_tuned = is_tuned

    def is_free(self, arm: Arm) -> bool:
        """Whether the plan is as good as plain decoding where it guesses nothing. It then stays; with an empty budget
        only guesses that are not expected to lose are checked.
        """
        is_drafting = arm.plan.drafts and arm.plan.can_shrink and not arm.plan.method.needs_draft
        return is_drafting and self._guide.plain_ms(self.ctx) > _SOURCES_MS / _UNSEEN

    def may_win(self, arm: Arm) -> bool:
        """Whether a plan may win by enough to pay for what its draft has to read first.

        Without a profile, pass times decide: reading a prompt tells what a further token costs at least.
        """
        needs_draft = arm.plan.method.needs_draft
        reading = _READING * self.n_unread * self.level() if needs_draft else 0.0
        if needs_draft and not arm.is_known:
            return self._guide.chain_rate(_USUAL_CHANCE, self.ctx) >= 1 + reading / _PAID_BACK
        cost = reading / _WORTH_READING if arm.is_known else _SOURCES_MS / self._guide.plain_ms(self.ctx)
        return sum(arm.prior()) >= 1 + cost

    def can_pay(self, plan: Plan, balance: float) -> bool:
        """Whether the loss budget pays for a few draft passes and the smallest tree of the plan."""
        needs_draft, tree = plan.method.needs_draft, plan.smallest
        n_levels = min(tree.depth, tree.budget - 1) if needs_draft else 0
        smallest = self._guide.tree_ms(tree.budget, n_levels, self.ctx) * 1e-3 / self.plain() - 1
        if not needs_draft:
            return smallest <= balance
        looks = _FEWEST_LOOKS * self.level()
        # Where pass times were measured, an adaptive plan grows no tree that is expected to lose more than the budget.
        is_bounded = plan.can_shrink and self._is_tuned
        return (looks if is_bounded else max(looks, smallest)) <= balance

    def level(self) -> float:
        """What a draft pass over one token takes, in plain passes."""
        return float(self._guide.levels_row(self.ctx)[1]) * 1e-3 / self.plain()

    def plain(self) -> float:
        """Seconds of a plain pass."""
        return self._guide.plain_ms(self.ctx) * 1e-3


class LossBudget:
    """What passes won or lost, compared with plain decoding.

    It begins with a small stake, and every plain pass adds a small share of its time, so losses are bounded where
    nothing pays. A plan that wins fills the loss budget up to some standard deviations of a pass, so that a few unlucky
    passes do not end it.

    balance: plain passes that may be lost now; negative if more was lost.
    """

    def __init__(self, is_proven: bool) -> None:
        """is_proven: whether a profile, or earlier runs, say that the first plan wins."""
        self.balance = _MOST_SAVED if is_proven else _STAKE

    def begin_text(self) -> None:
        """A text begins without speculation: it may lose no more than the first did."""
        self.balance = min(self.balance, _STAKE)

    def save(self, plain_passes: float) -> None:
        """Put in a share of so many plain passes, which were made without speculation."""
        self.balance = min(self.balance + _SHARE * plain_passes, max(self.balance, _MOST_SAVED))

    def book(self, won: float, deviation: float) -> None:
        """Put in what a pass won, or take out what it lost. deviation: that of the passes of its plan."""
        self.balance = min(self.balance + won, min(max(_DEVIATIONS * deviation, _STAKE), _MOST_WON))

    def end_plan(self, sources_go_on: bool) -> None:
        """A plan that does not win is left. sources_go_on: whether its draft sources go on alone."""
        self.balance = _SOURCES_STAKE if sources_go_on else min(self.balance, 0.0)
