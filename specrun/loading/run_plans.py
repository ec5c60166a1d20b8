"""The plans that a loaded pair can follow, what chooses among them, and the number of CPU threads, on which the times
of passes depend: as many as other programs leave cores for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from specrun.decoding import tree_shapes
from specrun.decoding.engine import Engine
from specrun.hardware.cpu import LoadWatch, usable_cores
from specrun.hardware.placement import Placement
from specrun.llama.context import LlamaContext
from specrun.llama_settings import LlamaSettings
from specrun.loading import learning
from specrun.loading.learning import Learner
from specrun.loading.placing import FirstGuesses
from specrun.loading.run_options import RunOptions
from specrun.profiles.profile import Profile, nearest
from specrun.speculation.controllers.auto import Auto
from specrun.speculation.controllers.chooser import FixedPlan, PlanChooser
from specrun.speculation.method import Plan
from specrun.speculation.planning.costs import CostTable

_LEAST_SECONDS = 0.25  # a shorter look says little, because the system counts processor time in steps of 10 ms
# Cores that other programs seem to hold in a shorter one, from which on the rest of that time is waited for: a small
# model is loaded in a tenth of a second, and wrote at a tenth of its speed beside two busy programs.
_SUSPECT = 0.3


@dataclass
class RunPlans:
    """The plans of one loaded pair, for one number of threads."""

    engine: Engine
    candidates: Sequence[Plan]  # the plans that can run
    profile: Profile | None  # what `specrun tune` measured of this pair on this machine; None for nothing
    follow: bool  # whether the profile's plans are followed instead of the candidates
    known: Profile | None = None  # `profile`, or what earlier runs of `auto` learned of the pair; None for nothing
    guesses: FirstGuesses = field(default_factory=FirstGuesses)  # what the places of the weights tell
    draft_table: CostTable | None = None  # what draft passes took while the pair was loaded
    learner: Learner | None = None  # keeps what runs teach; None for nothing

    def __post_init__(self) -> None:
        self._follows_profile = self.profile is not None and self.follow
        self.kept = self._autos()  # the choosers that `auto` keeps from one text to the next; none for a single plan
        self._fixed: dict[float, FixedPlan] = {}

    def with_threads(self, n: int) -> RunPlans:
        """Those for passes with `n` threads, of which `specrun tune`, which had all, knows no times."""
        learner = self.learner.with_threads(n) if self.learner else None
        profile = None if self.kept else self.profile
        return replace(self, profile=profile, learner=learner, known=profile or (learner.earlier if learner else None))

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
        return tree_shapes.shaped(self.engine, self.profile, plans, temperature)

    def fixed(self, plan: Plan, temperature: float) -> FixedPlan:
        """A chooser of this plan for every pass, with the profile's cost tables if there is a profile."""
        return FixedPlan(plan, self.profile.guide(temperature) if self.profile else None)


class FollowedPlans:
    """The plans for as many threads as passes have. What was learned with another number is kept apart.

    now: those for the present number. n_threads: CPU threads of a pass while other programs hold cores; None while
    there are as many as ever.
    """

    def __init__(self, plans: RunPlans) -> None:
        self.now = plans
        self.n_threads: int | None = None
        self._by_threads: dict[int | None, RunPlans] = {None: plans}
        self._contexts: Sequence[LlamaContext] = ()
        self._watch: LoadWatch | None = None
        self._wanted = 1  # threads without other programs

    def follow_load(self, contexts: Sequence[LlamaContext], watch: LoadWatch, again: bool) -> None:
        """Give passes as many threads as other programs leave cores for.

        contexts: of the target and the draft. watch: runs since before they were loaded. again: whether to look at the
        load between texts, too.
        """
        self._contexts, self._watch, self._wanted = contexts, watch, usable_cores()
        if watch.seconds < _LEAST_SECONDS and watch.so_far().cores > _SUSPECT:
            watch.after(_LEAST_SECONDS)
        self.look()
        if not again:
            self._watch = None

    def look(self) -> None:
        """Count the free cores anew, between two passes, from what other programs did since the last time."""
        if self._watch is None or self._watch.seconds < _LEAST_SECONDS:
            return
        free = self._watch.so_far().threads_beside(self._wanted)
        self._watch = LoadWatch()
        n = free if free < self._wanted else None
        if n == self.n_threads:
            return
        self.n_threads = n
        for context in self._contexts:
            context.set_threads(free)
        if n not in self._by_threads:
            self._by_threads[n] = self._by_threads[None].with_threads(free)
        self.now = self._by_threads[n]

    @property
    def notice(self) -> str | None:
        """A sentence for the user while other programs hold cores; else None."""
        if not self.n_threads:
            return None
        notice = (
            "other programs hold cores, so that fewer threads compute while they do (`specrun doctor` names them, "
            "--threads sets a number)"
        )
        if self._by_threads[None].profile and not self.now.profile:
            return f"{notice}; what `specrun tune` measured with all threads is followed once these are free"
        return notice

    def keep(self) -> None:
        """Keep what was learned."""
        for plans in self._by_threads.values():
            if plans.learner:
                plans.learner.keep(plans.kept)


def may_follow(options: RunOptions, target: LlamaSettings, placement: Placement | None, is_auto: bool) -> bool:
    """Whether the number of threads is open, and nothing but the speed hangs on it.

    options: with the profile's settings, whose threads were chosen on purpose, as the user's are. target: the settings
    that its context has. placement: with a target in VRAM the cores compute next to nothing. is_auto: whether plans are
    chosen by what passes take, as the sizes of passes are then; where bits depend on them, the text depends on times
    anyway.
    """
    if options.settings.threads is not None or (placement and placement.regime == "in VRAM"):
        return False
    return not target.divides_attention or (is_auto and not options.pads)
