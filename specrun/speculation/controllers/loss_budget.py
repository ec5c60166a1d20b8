"""What trying plans may cost, counted in plain passes."""

from __future__ import annotations

# Chosen in the simulations of tests/speculation/controllers: by them `auto` loses at most 3 % of 96 tokens where
# nothing pays.
_STAKE = 1.1  # plain passes that may be lost before anything is known
_SHARE = 0.01  # share of the time without speculation that may be lost by trying plans
_MOST_SAVED = 4.0  # plain passes to which that share adds up at most
_DEVIATIONS = 4.0  # a plan that wins may then lose this many standard deviations of a pass before it is left,
_MOST_WON = 8.0  # and at most so many plain passes
_SOURCES_STAKE = 0.3  # plain passes that draft sources alone may lose after a plan with a draft model was left


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
        self.balance = min(self.balance, 0.0)
        if sources_go_on:
            self.balance = max(self.balance, _SOURCES_STAKE)
