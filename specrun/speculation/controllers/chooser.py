"""Choosing the plan of the next pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from specrun.speculation.plan import Plan
from specrun.speculation.planning.guide import Guide
from specrun.speculation.record import PassRecord


class PlanChooser(Protocol):
    """Chooses the plan of every pass, and learns from what each pass brought."""

    @property
    def current(self) -> Plan:
        """The plan of the next pass."""
        ...

    @property
    def needs_draft(self) -> bool:
        """Whether passes to come will use the draft model, which should then read the prompt at once."""
        ...

    @property
    def guide(self) -> Guide | None:
        """Pass times and calibration for adaptive plans; None for plans that need none."""
        ...

    def begin(self, temperature: float) -> None:
        """Learn that a generation at this temperature begins."""
        ...

    def read_prompt(self, n_tokens: int, seconds: float) -> None:
        """Learn that the target read so many tokens of the prompt in so many seconds."""
        ...

    def record(self, record: PassRecord) -> None:
        """Learn from a pass that followed `current`."""
        ...

    @property
    def together(self) -> Plan:
        """The plan of this text in a pass that it shares with others, if drafting pays there."""
        ...

    def record_together(self, record: PassRecord) -> None:
        """Learn from a pass that several texts shared: `n_target` and the seconds are those of the whole pass."""
        ...


@dataclass(frozen=True)
class FixedPlan:
    """One plan for every pass."""

    current: Plan
    guide: Guide | None = None

    @property
    def together(self) -> Plan:
        """The same plan."""
        return self.current

    @property
    def needs_draft(self) -> bool:
        """Whether the plan uses the draft model."""
        return self.current.drafts and self.current.method.needs_draft

    def begin(self, temperature: float) -> None:
        """Changes nothing."""

    def read_prompt(self, n_tokens: int, seconds: float) -> None:
        """Let the guide learn from the prompt."""
        if self.guide:
            self.guide.read_prompt(n_tokens, seconds)

    def record(self, record: PassRecord) -> None:
        """Let the guide learn from the pass."""
        if self.guide:
            self.guide.learn(record)
            self.guide.follow(record)

    def record_together(self, record: PassRecord) -> None:
        """Let the guide learn from the pass."""
        if self.guide:
            self.guide.learn(record)

    def __str__(self) -> str:
        return str(self.current)
