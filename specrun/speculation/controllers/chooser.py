"""Choosing the plan of the next pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from specrun.speculation.method import Plan
from specrun.speculation.planning.guide import Guide, PassRecord


class PlanChooser(Protocol):
    """Chooses the plan of every pass of texts at one temperature, and learns from what each pass brought."""

    def plan(self, n_texts: int = 1) -> Plan:
        """The plan of a text in the next pass. n_texts: texts of which that pass has tokens."""

    @property
    def needs_draft(self) -> bool:
        """Whether passes to come will use the draft model. It should then read the prompt at once."""

    @property
    def guide(self) -> Guide | None:
        """Pass times and calibration for adaptive plans; None for plans that need none."""

    def read_prompt(self, n_tokens: int, seconds: float, n_unread: int) -> None:
        """Learn that the target read so many tokens of the prompt in so many seconds.

        n_unread: tokens of it that the draft model would have to read. They may be more, where the target had the
            beginning in its cache.
        """

    def record(self, record: PassRecord) -> None:
        """Learn from a pass that followed `plan`. In a pass of several texts, each text has a record of its own."""


@dataclass(frozen=True)
class FixedPlan:
    """One plan for every pass."""

    fixed: Plan
    guide: Guide | None = None

    def plan(self, n_texts: int = 1) -> Plan:  # noqa: ARG002
        return self.fixed

    @property
    def needs_draft(self) -> bool:
        return self.fixed.drafts and self.fixed.method.needs_draft

    def read_prompt(self, n_tokens: int, seconds: float, n_unread: int) -> None:  # noqa: ARG002
        if self.guide:
            self.guide.read_prompt(n_tokens, seconds)

    def record(self, record: PassRecord) -> None:
        if self.guide:
            self.guide.learn(record)
            if record.n_texts == 1:  # the rate of the run is that of a text alone
                self.guide.follow(record)

    def __str__(self) -> str:
        return str(self.fixed)
