"""Saved profiles, and those that no longer fit this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specrun.doctor.finding import Finding
from specrun.errors import ProfileError
from specrun.profiles import profile_files
from specrun.profiles.profile import Profile

_MOST_NAMED = 3


def saved(surroundings: Mapping[str, Any]) -> Finding:
    """Whether every tuned profile can be read and fits. surroundings: `hardware.machine.surroundings` of now."""
    good, damaged, stale = 0, [], []
    for path in sorted(profile_files.folder().glob("*.json")):
        try:
            profile = profile_files.load(path)
        except ProfileError:
            damaged.append(str(path))
            continue
        changed = [part for part, value in surroundings.items() if profile.identity.get(part) != value]
        if changed:
            stale.append(f"{_pair(profile)} ({profile_files.in_words(changed)} changed since)")
        else:
            good += 1
    if damaged:
        fix = f"rm {' '.join(map(repr, damaged))}, and `specrun tune` again"
        return Finding("profiles", "fail", f"{_listed(damaged)} cannot be read", fix)
    if stale:
        detail = f"{good} of {good + len(stale)} fit; not used any more: {_listed(stale)}"
        return Finding("profiles", "warn", detail, "`specrun tune` with the same models measures them again")
    return Finding("profiles", "ok", f"{good}" if good else "none; `specrun tune` makes one, which makes runs faster")


def _pair(profile: Profile) -> str:
    return f"{profile.target} with {profile.draft}" if profile.draft else profile.target


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more
