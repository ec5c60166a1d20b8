"""Profiles: what was measured of a pair on a machine, and the plans that follow, as JSON in the user's data folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from specrun.errors import ProfileError
from specrun.locations import data_dir, write_json
from specrun.settings import LlamaSettings
from specrun.speculation.calibration import Calibration
from specrun.speculation.costs import CostModel
from specrun.speculation.guide import Guide
from specrun.speculation.methods import COPIED_NODES, METHODS
from specrun.speculation.plan import Plan
from specrun.speculation.profiled import ByTemperature, ProfiledPlan, nearest
from specrun.speculation.shape import TreeShape
from specrun.tuning.acceptance import Acceptance

VERSION = 2


@dataclass(frozen=True)
class TunedPlan:
    """The plan for one temperature. predicted_*: what is expected of it, and of plain decoding. other: the best plan
    that drafts where the plan is off, with what was expected of it.
    """

    temperature: float
    plan: Plan
    predicted_tokens_per_second: float
    predicted_tokens_per_pass: float
    plain_tokens_per_second: float
    other: Plan | None = None
    other_tokens_per_second: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return {
            "temperature": self.temperature,
            **_plan_json(self.plan),
            "predicted_tokens_per_second": round(self.predicted_tokens_per_second, 3),
            "predicted_tokens_per_pass": round(self.predicted_tokens_per_pass, 3),
            "plain_tokens_per_second": round(self.plain_tokens_per_second, 3),
            "other": _plan_json(self.other) if self.other else None,
            "other_tokens_per_second": round(self.other_tokens_per_second, 3),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> TunedPlan:
        other = value["other"]
        return cls(
            float(value["temperature"]),
            _plan(value),
            float(value["predicted_tokens_per_second"]),
            float(value["predicted_tokens_per_pass"]),
            float(value["plain_tokens_per_second"]),
            _plan(other) if other else None,
            float(value["other_tokens_per_second"]),
        )


def _plan_json(plan: Plan) -> dict[str, Any]:
    size = {"method": plan.method, "budget": plan.budget, "depth": plan.depth, "width": plan.width}
    size["overlap"] = plan.overlap
    return size | ({"children": list(plan.shape.child_counts)} if plan.shape else {})


def _plan(value: dict[str, Any]) -> Plan:
    if value["method"] not in METHODS:
        raise ValueError(f"no method {value['method']}")
    plan = Plan(value["method"], int(value["budget"]), int(value["depth"]), int(value["width"]))
    plan = replace(plan, overlap=bool(value.get("overlap")))
    return plan.shaped(TreeShape.of_children(value["children"])) if "children" in value else plan


def _tuples(value: dict[str, Any]) -> dict[str, Any]:
    """JSON has lists only."""
    return {name: tuple(entry) if isinstance(entry, list) else entry for name, entry in value.items()}


@dataclass(frozen=True)
class Profile:
    """What one run of `specrun tune` found.

    fingerprint: of everything that the figures depend on. identity: the parts of it, to tell what has changed.
    created: ISO 8601, UTC. settings: llama.cpp's, as measured. exact_up_to: tokens of a pass up to which logits are
    the same bits as one by one; 0 if they never are. regime: where the weights are.
    """

    fingerprint: str
    identity: dict[str, Any]
    created: str
    target: str
    draft: str
    hardware: dict[str, Any]
    settings: LlamaSettings
    regime: str
    exact_up_to: int
    costs: CostModel
    acceptance: list[Acceptance]
    plans: list[TunedPlan]
    validation: list[dict[str, Any]] = field(default_factory=list)
    predictions: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    tried: list[dict[str, Any]] = field(default_factory=list)
    picture: str = ""
    notices: list[str] = field(default_factory=list)

    def chooser(self) -> ByTemperature:
        """What follows the plans of this profile while generating."""
        plans = {}
        for tuned in self.plans:
            plans[tuned.temperature] = ProfiledPlan(
                tuned.plan, tuned.predicted_tokens_per_second, self.guide(tuned.temperature), tuned.other,
                tuned.other_tokens_per_second,
            )  # fmt: skip
        return ByTemperature(plans)

    def guide(self, temperature: float) -> Guide:
        """What a step at this temperature is weighed with, at its beginning."""
        tuned = self.at(temperature)
        rate = max(tuned.predicted_tokens_per_second, tuned.plain_tokens_per_second) / 1e3
        # A copy: it shifts with the texts that are written.
        calibration = self.acceptance_at(temperature).calibration.as_json() if self.acceptance else None
        return Guide(self.costs, Calibration.from_json(calibration) if calibration else None, rate)

    def without_draft(self, exact: bool) -> Profile:
        """What it says of the target alone: its settings and pass times, by which drafting from the text itself is
        weighed. exact: only in passes whose logits are bit-exact.
        """
        largest = min(COPIED_NODES, self.costs.target.largest)
        if exact and self.exact_up_to < self.costs.target.largest:
            # As many committed tokens may come before a tree.
            largest = max(1, min(largest, self.exact_up_to // 2))
        plan = METHODS["draftless"].plan(largest) if largest > 1 else Plan.off()
        rates = [(tuned.temperature, tuned.plain_tokens_per_second) for tuned in self.plans]
        plans = [TunedPlan(temperature, plan, rate, 1.0, rate) for temperature, rate in rates]
        costs = CostModel(self.costs.target, None, self.costs.overhead)
        return replace(self, draft="", costs=costs, acceptance=[], plans=plans)

    def at(self, temperature: float) -> TunedPlan:
        """The plan measured nearest to `temperature`."""
        wanted = nearest(temperature, [tuned.temperature for tuned in self.plans])
        return next(tuned for tuned in self.plans if tuned.temperature == wanted)

    def acceptance_at(self, temperature: float) -> Acceptance:
        """What was measured nearest to `temperature`. Raises ValueError without a draft, where nothing was."""
        wanted = nearest(temperature, [found.temperature for found in self.acceptance])
        return next(found for found in self.acceptance if found.temperature == wanted)

    def candidates(self) -> tuple[Plan, ...]:
        """Every plan that may be followed."""
        plans = [plan for tuned in self.plans for plan in (tuned.plan, tuned.other) if plan]
        return tuple(dict.fromkeys(plans))

    def as_json(self) -> dict[str, Any]:
        first = self.plans[0].as_json()
        return {
            "version": VERSION,
            "fingerprint": self.fingerprint,
            "identity": self.identity,
            "created": self.created,
            "pair": {"target": self.target, "draft": self.draft},
            "hardware": self.hardware,
            "settings": asdict(self.settings),
            "regime": self.regime,
            "exact_up_to": self.exact_up_to,
            "tables": self.costs.as_json(),
            "acceptance": [acceptance.as_json() for acceptance in self.acceptance],
            "plan": first,
            "plans": [plan.as_json() for plan in self.plans],
            "validation": self.validation,
            "predictions": self.predictions,
            "tried": self.tried,
            "picture": self.picture,
            "notices": self.notices,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Profile:
        """Raises ProfileError for a value that is not that of `as_json`, or of another version."""
        try:
            if value["version"] != VERSION:
                raise ProfileError(f"a profile of version {value['version']}, not {VERSION}; run `specrun tune` again")
            return cls(
                value["fingerprint"],
                value["identity"],
                value["created"],
                value["pair"]["target"],
                value["pair"]["draft"],
                value["hardware"],
                LlamaSettings(**_tuples(value["settings"])),
                value["regime"],
                int(value["exact_up_to"]),
                CostModel.from_json(value["tables"]),
                [Acceptance.from_json(entry) for entry in value["acceptance"]],
                [TunedPlan.from_json(entry) for entry in value["plans"]],
                value["validation"],
                value["predictions"],
                value["tried"],
                value["picture"],
                value["notices"],
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ProfileError("not a profile of `specrun tune`") from error


def folder() -> Path:
    """Where profiles are kept."""
    return data_dir() / "profiles"


def path_of(fingerprint: str) -> Path:
    return folder() / f"{fingerprint}.json"


def check_folder() -> None:
    """Raise ProfileError if no profile could be saved, before minutes of measuring find out."""
    try:
        write_json(folder() / "unfinished" / "check.json", {})
        (folder() / "unfinished" / "check.json").unlink()
    except OSError as error:
        raise ProfileError(
            f"profiles cannot be written to {folder()}: {error.strerror}; SPECRUN_DATA_DIR names another folder"
        ) from error


def save(profile: Profile) -> Path:
    """Write it atomically; returns the path. Raises ProfileError where that is impossible."""
    path = path_of(profile.fingerprint)
    try:
        write_json(path, profile.as_json())
    except OSError as error:
        raise ProfileError(f"the profile cannot be written to {path}: {error.strerror}") from error
    return path


def forget(profile: Profile) -> Path:
    """Delete it; returns where it was. Raises ProfileError where that is impossible."""
    path = path_of(profile.fingerprint)
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise ProfileError(f"{path} cannot be deleted: {error.strerror}") from error
    return path


def export(profile: Profile, path: Path) -> None:
    """Write it to a file of the user's. Raises ProfileError where that is impossible."""
    try:
        write_json(path.absolute(), profile.as_json())
    except OSError as error:
        raise ProfileError(f"{path} cannot be written: {error.strerror}") from error


def load(path: Path) -> Profile:
    """Raises ProfileError if the file cannot be read or is not a profile."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ProfileError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ProfileError(f"{path} is not a profile of `specrun tune`") from error
    try:
        return Profile.from_json(value)
    except ProfileError as error:
        raise ProfileError(f"{path}: {error}") from error


def saved() -> Iterator[tuple[Path, Profile]]:
    """Every profile that can be read, newest first."""
    found = []
    for path in folder().glob("*.json"):
        try:
            found.append((path, load(path)))
        except ProfileError:
            continue
    return iter(sorted(found, key=lambda item: item[1].created, reverse=True))


def are_saved() -> bool:
    """Whether there is any profile, without reading one."""
    return any(folder().glob("*.json"))


def find(fingerprint: str) -> Profile | None:
    """The profile with this fingerprint, or None. Raises ProfileError for one that is there but broken."""
    path = path_of(fingerprint)
    return load(path) if path.exists() else None


def of_target(identity: dict[str, Any]) -> Profile | None:
    """The newest profile of the same target, whatever its draft, with everything else the same."""

    def without_draft(parts: dict[str, Any]) -> dict[str, Any]:
        return parts | {"files": parts.get("files", [None])[:1]}

    wanted = without_draft(identity)
    return next((profile for _, profile in saved() if without_draft(profile.identity) == wanted), None)


def stale(identity: dict[str, Any]) -> tuple[Profile, list[str]] | None:
    """The newest profile of the same files whose machine, build or settings have changed since, and what changed."""
    for _, profile in saved():
        if profile.identity.get("files") == identity.get("files"):
            changed = [key for key, value in identity.items() if profile.identity.get(key) != value]
            if changed:
                return profile, changed
    return None
