"""The plans that a loaded pair can follow, and what chooses among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from specrun.engine import growth_maps, learning
from specrun.engine.engine import Engine
from specrun.engine.placing import FirstGuesses
from specrun.profiles.profile import Profile, nearest
from specrun.speculation.controllers.auto import Auto
from specrun.speculation.controllers.chooser import FixedPlan, PlanChooser
from specrun.speculation.method import Plan
from specrun.speculation.planning.costs import CostTable


@dataclass
class RunPlans:
    """The plans of one loaded pair."""

    engine: Engine
    candidates: Sequence[Plan]  # the plans that can run
    profile: Profile | None  # what `specrun tune` measured of this pair on this machine; None for nothing
    follow: bool  # whether the profile's plans are followed instead of the candidates
    known: Profile | None = None  # `profile`, or what earlier runs of `auto` learned of the pair; None for nothing
    guesses: FirstGuesses = field(default_factory=FirstGuesses)  # what the places of the weights tell
    draft_table: CostTable | None = None  # what draft passes took while the pair was loaded

    def __post_init__(self) -> None:
        self._follows_profile = self.profile is not None and self.follow
        self.kept = self._autos()  # the choosers that `auto` keeps from one text to the next; none for a single plan
        self._fixed: dict[float, FixedPlan] = {}

    def auto(self, temperature: float) -> PlanChooser:
        """A new chooser for texts of this temperature, which has seen nothing yet."""
        autos = self._autos()
        return autos[nearest(temperature, autos)] if autos else FixedPlan(self.candidates[0])

    def _autos(self) -> dict[float, Auto]:
        """New choosers by temperature: by the profile, by what was learned, or among several candidates."""
        if len(self.candidates) == 1 and not self._follows_profile:
            return {}
        target = self.engine.target
        prompt_pass = target.context.config.settings.prompt_pass
        known, table = self.known, self.draft_table
        return learning.choosers(self.candidates, known, target.padding, prompt_pass, self.guesses, table)

    def at(self, temperature: float) -> PlanChooser:
        """The chooser for texts of this temperature. It is kept, so it learns from one text to the next.

        A single plan that needs a tree shape gets it, for which short texts may be written first.
        """
        if self.kept:
            return self.kept[nearest(temperature, self.kept)]
        if temperature not in self._fixed:
            self._fixed[temperature] = self.fixed(self.shaped(self.candidates, temperature)[0], temperature)
        return self._fixed[temperature]

    def shaped(self, plans: Sequence[Plan], temperature: float) -> list[Plan]:
        """The plans; where a tree shape is needed and missing, it is computed, if there is a draft model."""
        if self.engine.draft is None:
            return list(plans)
        return growth_maps.shaped(self.engine, self.profile, plans, temperature)

    def fixed(self, plan: Plan, temperature: float) -> FixedPlan:
        """A chooser of this plan for every pass, with the profile's cost tables if there is a profile."""
        return FixedPlan(plan, self.profile.guide(temperature) if self.profile else None)
