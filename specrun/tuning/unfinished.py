"""What a run of `specrun tune` has measured so far, on disk, so that an interrupted run can be continued."""

from __future__ import annotations

import base64
import pathlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

import numpy as np
from cattrs import Converter
from numpy.typing import NDArray

from specrun.hardware.residency import RingSettings
from specrun.llama_settings import LlamaSettings
from specrun.locations import recall, remember
from specrun.profiles.codec import converter
from specrun.profiles.profile import Profile, TriedRing, TriedSettings
from specrun.profiles.profile_files import folder
from specrun.sampling import Candidates
from specrun.speculation.planning.costs import CostTable, Overhead
from specrun.speculation.planning.pass_sizes import PassSizes
from specrun.tuning.trace import MeasuredAcceptance, Path, Position

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
    overhead: Overhead | None = None
    acceptance: list[MeasuredAcceptance] = field(default_factory=list)
    prompt_ms: dict[int, float] = field(default_factory=dict)  # see `Profile`
    ring: RingSettings | None = None
    tried_rings: list[TriedRing] = field(default_factory=list)


class UnfinishedRun:
    """The stages of one run, and the file that keeps them."""

    def __init__(self, fingerprint: str, key: str) -> None:
        """Read what an earlier run with this fingerprint and key has measured, if it was less than an hour ago."""
        self._path = path = _file(fingerprint)

        def read(value: Any) -> Stages | None:
            is_usable = time.time() - path.stat().st_mtime <= _MAX_AGE and value["key"] == key
            return _converter().structure(value, Stages) if is_usable else None

        earlier = recall(path, read)
        self.is_resumed = earlier is not None
        self.stages = earlier or Stages(key)

    def take_target(self, profile: Profile) -> None:
        """Take what concerns the target alone from a profile that was measured just now, unless it is known already."""
        stages = self.stages
        if stages.settings is None:
            stages.settings, stages.tried, stages.prompt_ms = profile.settings, profile.tried, profile.prompt_ms
            stages.target, stages.exact_sizes = profile.costs.target, profile.exact_sizes
            stages.ring, stages.tried_rings = profile.ring, profile.tried_rings

    def once(self, stage: str, measure: Callable[[], Result]) -> Result:
        """The result of a stage, by its name in `Stages`: what is known already, or what is measured now and kept."""
        if not getattr(self.stages, stage):
            setattr(self.stages, stage, measure())
            self.save()
        result: Result = getattr(self.stages, stage)
        return result

    def save(self) -> None:
        """Write the stages to the file. If the disk refuses, the run can only not be continued."""
        remember(self._path, _converter().unstructure(self.stages))


def delete(fingerprint: str) -> None:
    """Delete what an unfinished run has left; its profile is saved."""
    _file(fingerprint).unlink(missing_ok=True)


def _file(fingerprint: str) -> pathlib.Path:
    return folder() / "unfinished" / f"{fingerprint}.json"


@cache
def _converter() -> Converter:
    """The converter of profiles, with traces added. Scores of candidates are kept as float32."""
    with_traces = converter().copy()
    with_traces.register_unstructure_hook(Position, _position_to_json)
    with_traces.register_structure_hook(Position, _position_from_json)
    return with_traces


def _position_to_json(position: Position) -> dict[str, Any]:
    # Lists of numbers would need hundreds of megabytes where memory is what there is too little of.
    places = {path: place for place, path in enumerate(position.children)}
    nodes = [(places[path[:-1]], path[-1]) if path else (0, 0) for path in places]
    below = list(position.children.values())
    return {
        "ctx": position.ctx,
        "continuation": position.continuation,
        "nodes": _packed(np.array(nodes, np.int32)),
        "counts": _packed(np.array([len(candidates.tokens) for candidates in below], np.int32)),
        "tokens": _packed(np.concatenate([candidates.tokens for candidates in below]).astype(np.int32)),
        "scores": _packed(np.concatenate([candidates.scores for candidates in below]).astype(np.float32)),
    }


def _position_from_json(value: dict[str, Any], _type: type) -> Position:
    nodes = _unpacked(value["nodes"], np.int32).reshape(-1, 2).tolist()
    ends = _unpacked(value["counts"], np.int32).cumsum()[:-1]
    tokens = np.split(_unpacked(value["tokens"], np.int32).astype(np.int64), ends)
    scores = np.split(_unpacked(value["scores"], np.float32).astype(np.float64), ends)
    paths: list[Path] = []
    for place, (parent, token) in enumerate(nodes):
        paths.append((*paths[parent], token) if place else ())
    children = {path: Candidates(ids, values) for path, ids, values in zip(paths, tokens, scores, strict=True)}
    return Position(value["ctx"], value["continuation"], children)


def _packed(array: NDArray[Any]) -> str:
    return base64.b64encode(array.tobytes()).decode("ascii")


def _unpacked(text: str, dtype: type) -> NDArray[Any]:
    return np.frombuffer(base64.b64decode(text), dtype)
