"""What runs of `auto` learn of a pair without a profile of `specrun tune`, and keep for the next run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from specrun import clock
from specrun.errors import ProfileError
from specrun.llama_settings import DEFAULT_UBATCH, LlamaSettings
from specrun.loading.placing import FirstGuesses
from specrun.loading.run_options import RunOptions, identity_of
from specrun.profiles import profile_files
from specrun.profiles.profile import Acceptance, Profile, TunedPlan
from specrun.speculation.controllers.arm import ExpectedPlan, untried
from specrun.speculation.controllers.auto import Auto
from specrun.speculation.method import OFF, Plan
from specrun.speculation.planning.calibration import Calibration
from specrun.speculation.planning.costs import CostModel, CostTable
from specrun.speculation.planning.draft_times import DraftTimes
from specrun.speculation.planning.guide import Guide, RunCosts
from specrun.speculation.planning.pass_sizes import ANY_SIZE, PassSizes
from specrun.speculation.planning.pass_times import PassTimes

# Greedy and sampled texts differ in acceptance; temperatures above 0 differ little.
_TEMPERATURES = (0.0, 0.8)
_NO_GUESSES = FirstGuesses()
_SECONDS_BETWEEN = 60.0  # after so long the next text in the same process begins by keeping what was learned


def choosers(
    plans: Sequence[Plan],
    begin_with: Profile | None,
    padding: PassSizes = ANY_SIZE,
    prompt_pass: int = DEFAULT_UBATCH,
    guesses: FirstGuesses = _NO_GUESSES,
    draft_table: CostTable | None = None,
) -> dict[float, Auto]:
    """Controllers of `plans`, by temperature.

    begin_with: pass times, calibration and rates to begin with; None for nothing. prompt_pass: most tokens of one pass
        over a prompt. guesses: what the places of the weights tell. draft_table: what draft passes took while the pair
        was loaded, if nothing else is known of them.
    """
    measured = begin_with.costs if begin_with else None
    times = measured.target.times if measured else ()
    target = PassTimes(times, padding, prompt_pass, guesses.experts, guesses.copies_from)
    costs = RunCosts(target, DraftTimes(measured.draft if measured else draft_table))
    known = {a.temperature: a.calibration.counts for a in begin_with.acceptance} if begin_with else {}
    is_tuned = begin_with is not None and begin_with.origin == "tuned"
    temperatures = [tuned.temperature for tuned in begin_with.plans] if begin_with and is_tuned else _TEMPERATURES
    autos = {}
    for t in temperatures:
        guide = Guide(costs, Calibration(known.get(t)))
        first = begin_with.at(t).plan if begin_with and is_tuned else None
        autos[t] = Auto(_expected(plans, begin_with, t), guide, first, is_tuned)
    return autos


def _expected(plans: Sequence[Plan], begin_with: Profile | None, temperature: float) -> list[ExpectedPlan]:
    """The rates of `plans`, as far as they are known, and of plain decoding. Bounds of trees may have changed since."""
    if begin_with is None or temperature not in [tuned.temperature for tuned in begin_with.plans]:
        return untried(plans)
    tuned = begin_with.at(temperature)
    plain = tuned.plain_tokens_per_second
    measured = {expected.plan.method: expected for expected in tuned.expected}
    known = [replace(measured[p.method], plan=p) for p in plans if p.method in measured]
    tried = {expected.plan for expected in known}
    off = ExpectedPlan(OFF.plan(), plain, 0.0)
    return [*known, *([] if off.plan in tried else [off]), *untried([p for p in plans if p not in tried], plain)]


@dataclass
class Learner:
    """Keeps what a model's runs teach."""

    options: RunOptions  # what the user asks for, on which the fingerprint depends
    settings: LlamaSettings  # of the target, in use; they are kept, but never change those of a later run
    note: Callable[[str], None]  # called with a sentence if it cannot be kept
    _kept_at: float = field(default_factory=lambda: clock.now())

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What the learned facts depend on, as for a profile of `specrun tune`."""
        return identity_of(self.options)

    @property
    def earlier(self) -> Profile | None:
        """What earlier runs with the same settings have kept; None for nothing."""
        learned = profile_files.find(self.identity, self.note, "learned")
        return learned if learned and learned.settings == self.settings else None

    def with_threads(self, n: int) -> Learner:
        """The one for runs with `n` threads, whose passes take other times: what it keeps is that of `--threads n`."""
        options, settings = self.options, replace(self.settings, threads=n)
        target, draft = (replace(given, threads=n) for given in (options.settings, options.draft_settings))
        return Learner(replace(options, settings=target, draft_settings=draft), settings, self.note)

    def keep_now_and_then(self, choosers: Mapping[float, Auto]) -> None:
        """Keep what was learned if that was not done for a minute."""
        if clock.now() > self._kept_at + _SECONDS_BETWEEN:
            self.keep(choosers)

    def keep(self, choosers: Mapping[float, Auto]) -> None:
        """Keep what the choosers of each temperature learned. If that is impossible the run goes on, with a notice."""
        self._kept_at = clock.now()
        try:
            if learned := self._profile({t: auto for t, auto in choosers.items() if auto.has_learned}):
                profile_files.save(learned)
        except ProfileError as error:
            self.note(f"what this run learned is not kept: {error}")

    def _profile(self, choosers: Mapping[float, Auto]) -> Profile | None:
        """What the runs taught, and earlier ones at other temperatures; None if nothing, or if they have a profile."""
        guide = next((auto.guide for auto in choosers.values()), None)
        if guide is None or self.options.profile:
            return None
        earlier, learned = self.earlier, guide.costs
        acceptance = [Acceptance(t, auto.guide.calibration.with_run()) for t, auto in choosers.items()]
        plans = [_plan(t, auto) for t, auto in choosers.items()]
        if earlier:
            acceptance += [known for known in earlier.acceptance if known.temperature not in choosers]
            plans += [known for known in earlier.plans if known.temperature not in choosers]
        table = learned.draft.table(guide.plain_ms(0)) if self.options.draft else None
        return Profile(
            identity=self.identity,
            target=self.options.target.name,
            draft=self.options.draft.name if self.options.draft else "",
            folders=self.options.folders,
            settings=self.settings,
            costs=CostModel(CostTable(learned.target.times), table),
            acceptance=acceptance,
            plans=plans,
            origin="learned",
        )


def _plan(temperature: float, auto: Auto) -> TunedPlan:
    expected = auto.expected
    rates = {e.plan: e.tokens_per_second for e in expected}
    plain = next(e.tokens_per_second for e in expected if not e.plan.drafts)
    return TunedPlan(temperature, auto.held, rates.get(auto.held, plain), auto.tokens_per_pass, plain, expected)
