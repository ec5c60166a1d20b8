"""A controller for each of several temperatures, because acceptance depends on the temperature."""

from __future__ import annotations

from collections.abc import Mapping

from specrun.speculation.controllers.auto import Auto
from specrun.speculation.method import Plan
from specrun.speculation.planning.guide import Guide
from specrun.speculation.record import PassRecord


class ByTemperature:
    """A `PlanChooser` that follows the controller of the nearest temperature.

    now: the controller of the present generation, or of the last generation.
    """

    def __init__(self, controllers: Mapping[float, Auto]) -> None:
        self.controllers = dict(controllers)
        self.now = next(iter(self.controllers.values()))

    def plan(self, n_texts: int = 1) -> Plan:
        return self.now.plan(n_texts)

    @property
    def needs_draft(self) -> bool:
        return self.now.needs_draft

    @property
    def guide(self) -> Guide:
        return self.now.guide

    def begin(self, temperature: float) -> None:
        """Change to the controller for this temperature."""
        self.now = self.controllers[nearest(temperature, list(self.controllers))]

    def read_prompt(self, n_tokens: int, seconds: float) -> None:
        self.now.read_prompt(n_tokens, seconds)

    def record(self, record: PassRecord) -> None:
        self.now.record(record)

    def __str__(self) -> str:
        return str(self.now)


def nearest(temperature: float, measured: list[float]) -> float:
    """The nearest measured temperature. Greedy and sampled texts differ most, so 0 stands for 0 only if possible."""
    return min(measured, key=lambda t: ((t == 0) != (temperature == 0), abs(t - temperature)))
