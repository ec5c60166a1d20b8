"""What a run of `specrun tune` has measured so far, on disk, so that an interrupted run can be continued."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from specrun import kept_facts
from specrun.decoding.calibration_texts import TuningText
from specrun.hardware.cpu import SECONDS_OF_A_LOOK, LoadWatch
from specrun.llama_settings import LlamaSettings
from specrun.profiles.codec import converter
from specrun.profiles.profile import Profile, TriedSettings
from specrun.profiles.profile_files import UNFINISHED
from specrun.speculation.planning.costs import CostTable
from specrun.speculation.planning.pass_sizes import PassSizes
from specrun.tuning.learning_texts import Learned

Result = TypeVar("Result")

_MAX_AGE = 3600.0  # seconds; later, another load or temperature of the machine may give other times


@dataclass
class Stages:
    """The results of the stages that are over; None or empty for stages that are still to come."""

    key: str  # see `key_of`; a run with another effort or other texts measures again
    settings: LlamaSettings | None = None
    tried: list[TriedSettings] = field(default_factory=list)
    target: CostTable | None = None
    draft: CostTable | None = None
    exact_sizes: PassSizes | None = None
    pads: bool = False  # whether every pass was padded to these sizes when texts were written
    learned: Learned | None = None
    prompt_ms: dict[int, float] = field(default_factory=dict)  # see `Profile`
    other_load: float = 0.0  # see `Profile`


def forget(identity: Mapping[str, Any]) -> None:
    """Delete the stages of a run whose profile is saved. If the disk refuses, they are of no use after an hour."""
    with suppress(OSError):
        kept_facts.path_of(UNFINISHED, identity).unlink()


def key_of(effort: str, temperatures: Sequence[float], own: Sequence[TuningText] | None, raw: bool) -> str:
    """Names the effort and the texts of a run, as `tune_pair` has them."""
    return f"{effort} {list(temperatures)} {[text.prompt for text in own] if own else ''} {raw}"


class UnfinishedRun:
    """The stages of one run, and the file that keeps them.

    is_resumed: whether there were any when this was made.
    """

    def __init__(self, identity: Mapping[str, Any], key: str) -> None:
        """Read what an earlier run with this identity and key has measured, if it was less than an hour ago."""
        self._identity = identity
        self._watch = LoadWatch()

        def read(value: Any) -> Stages | None:
            age = time.time() - kept_facts.path_of(UNFINISHED, identity).stat().st_mtime
            return converter().structure(value, Stages) if age <= _MAX_AGE and value["key"] == key else None

        earlier = kept_facts.recall(UNFINISHED, identity, read)
        self.is_resumed = earlier is not None
        self.stages = earlier or Stages(key)

    def take_target(self, profile: Profile) -> None:
        """Take what concerns the target alone from a profile that was measured just now, unless it is known already."""
        stages = self.stages
        if stages.settings is None:
            stages.settings, stages.tried, stages.prompt_ms = profile.settings, profile.tried, profile.prompt_ms
            stages.target, stages.exact_sizes = profile.costs.target, profile.exact_sizes
            stages.other_load = profile.other_load

    def once(self, stage: str, measure: Callable[[], Result]) -> Result:
        """The result of a stage, by its name in `Stages`: what is known already, or what is measured now and kept."""
        if not getattr(self.stages, stage):
            setattr(self.stages, stage, measure())
            self.save()
        result: Result = getattr(self.stages, stage)
        return result

    def save(self) -> None:
        """Write the stages to the file, with what other programs did meanwhile. If the disk refuses, the run can only
        not be continued.
        """
        if self._watch.seconds >= SECONDS_OF_A_LOOK:  # else the watch goes on over the next stage
            self.stages.other_load = max(self.stages.other_load, self._watch.so_far().cores)
            self._watch = LoadWatch()
        kept_facts.remember(UNFINISHED, self._identity, converter().unstructure(self.stages))
