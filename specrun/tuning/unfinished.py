"""What a run of `specrun tune` has measured so far, on disk, so that an interrupted run can be continued."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from specrun.llama_settings import LlamaSettings
from specrun.locations import recall, remember
from specrun.profiles.codec import converter
from specrun.profiles.profile import Profile, TriedSettings
from specrun.profiles.profile_files import folder
from specrun.speculation.planning.costs import CostTable
from specrun.speculation.planning.pass_sizes import PassSizes
from specrun.tuning.learning_texts import Learned

Result = TypeVar("Result")

_MAX_AGE = 3600.0  # seconds; later, another load or temperature of the machine may give other times


@dataclass
class Stages:
    """The results of the stages that are over; None or empty for stages that are still to come."""

    key: str  # names the effort and the texts; a run with another effort or other texts measures again
    settings: LlamaSettings | None = None
    tried: list[TriedSettings] = field(default_factory=list)
    target: CostTable | None = None
    draft: CostTable | None = None
    exact_sizes: PassSizes | None = None
    learned: list[Learned] = field(default_factory=list)
    prompt_ms: dict[int, float] = field(default_factory=dict)  # see `Profile`


class UnfinishedRun:
    """The stages of one run, and the file that keeps them."""

    def __init__(self, fingerprint: str, key: str) -> None:
        """Read what an earlier run with this fingerprint and key has measured, if it was less than an hour ago."""
        self._path = path = _file(fingerprint)

        def read(value: Any) -> Stages | None:
            is_usable = time.time() - path.stat().st_mtime <= _MAX_AGE and value["key"] == key
            return converter().structure(value, Stages) if is_usable else None

        earlier = recall(path, read)
        self.is_resumed = earlier is not None
        self.stages = earlier or Stages(key)

    def take_target(self, profile: Profile) -> None:
        """Take what concerns the target alone from a profile that was measured just now, unless it is known already."""
        stages = self.stages
        if stages.settings is None:
            stages.settings, stages.tried, stages.prompt_ms = profile.settings, profile.tried, profile.prompt_ms
            stages.target, stages.exact_sizes = profile.costs.target, profile.exact_sizes

    def once(self, stage: str, measure: Callable[[], Result]) -> Result:
        """The result of a stage, by its name in `Stages`: what is known already, or what is measured now and kept."""
        if not getattr(self.stages, stage):
            setattr(self.stages, stage, measure())
            self.save()
        result: Result = getattr(self.stages, stage)
        return result

    def save(self) -> None:
        """Write the stages to the file. If the disk refuses, the run can only not be continued."""
        remember(self._path, converter().unstructure(self.stages))


def delete(fingerprint: str) -> None:
    """Delete what an unfinished run has left; its profile is saved."""
    _file(fingerprint).unlink(missing_ok=True)


def _file(fingerprint: str) -> pathlib.Path:
    return folder() / "unfinished" / f"{fingerprint}.json"
