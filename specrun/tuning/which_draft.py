"""Measures one target with several drafts, and tells with which of them it is fastest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from specrun.engine import calibration_texts as texts
from specrun.engine.resolving import identity_of
from specrun.engine.run_options import RunOptions
from specrun.engine.trial import best_of, is_faster
from specrun.hardware.placement import Placement
from specrun.long_run import Run
from specrun.profiles.profile import Profile
from specrun.tuning.tune_pair import tune_pair
from specrun.tuning.tuner import EffortName


@dataclass(frozen=True)
class TunedDraft:
    """What was measured of the target with a draft."""

    name: str  # as the user or the catalog named the draft, or its file's name
    options: RunOptions
    profile: Profile
    placement: Placement
    plain: float  # tokens per second of plain decoding, the same for drafts that are compared where possible

    @classmethod
    def beside(
        cls, first: TunedDraft | None, name: str, options: RunOptions, profile: Profile, placement: Placement
    ) -> TunedDraft:
        """What was measured with another draft than `first`, which is None for the first one itself.

        Plain decoding is as fast with both where the target's layers lie in the same places. The machine may have
        become faster or slower in between, by more than the drafts differ, so it counts as measured at first.
        """
        if first and placement.holds_target_like(first.placement):
            return cls(name, options, profile, placement, first.plain)
        plain = geometric_mean(plan.plain_tokens_per_second for plan in profile.plans)
        return cls(name, options, profile, placement, plain)

    @property
    def rate(self) -> float:
        """Expected tokens per second, the geometric mean over the temperatures."""
        plans = self.profile.plans
        ratios = [plan.predicted_tokens_per_second / plan.plain_tokens_per_second for plan in plans]
        return self.plain * geometric_mean(ratios)


def tune_drafts(
    drafts: Sequence[tuple[str | None, RunOptions]],
    effort: EffortName,
    temperatures: Sequence[float],
    own: Sequence[texts.TuningText] | None,
    raw: bool,
    run: Run,
) -> list[TunedDraft]:
    """Measure the pairs one after the other. What concerns the target alone is measured once, with the first draft.

    drafts: the name of each draft (None if the user named none), and the options of its pair. The other parameters, and
    what is raised, are those of `tune_pair`.
    """
    tuned: list[TunedDraft] = []
    for given, options in drafts:
        name = given or (options.draft.name if options.draft else "none")
        shown = run.labelled(name) if len(drafts) > 1 else run
        first = (tuned[0].profile, tuned[0].placement) if tuned else None
        profile, placement = tune_pair(options, identity_of(options), effort, temperatures, own, raw, shown, first)
        tuned.append(TunedDraft.beside(tuned[0] if tuned else None, name, options, profile, placement))
    return tuned


def fastest_of(tuned: Sequence[TunedDraft]) -> TunedDraft:
    """The draft with which the target is expected to be fastest. The first is kept unless another is clearly faster."""
    best = best_of(tuned, lambda draft, _: draft, lambda new, best: is_faster(1 / new.rate, 1 / best.rate)).best
    assert best, "at least one draft was measured"
    return best
