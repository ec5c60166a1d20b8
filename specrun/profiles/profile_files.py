"""Profiles as files: those that are kept of this machine (`kept_facts`), and those that users export and import."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from specrun import kept_facts
from specrun.errors import ProfileError, disk_errors
from specrun.kept_facts import KeptFact
from specrun.locations import parse_json, write_json
from specrun.profiles.codec import profile_from_json, profile_to_json
from specrun.profiles.profile import Origin, Profile

KINDS: Mapping[Origin, str] = {"tuned": "profiles", "learned": "profiles/learned"}  # of facts
UNFINISHED = "profiles/unfinished"


def check_folder() -> None:
    """Raise ProfileError if no profile could be saved; `specrun tune` asks before it measures for minutes."""
    with disk_errors("written; SPECRUN_DATA_DIR names another folder", kept_facts.folder("profiles"), ProfileError):
        kept_facts.write(UNFINISHED, {}, {}).unlink()


def save(profile: Profile) -> Path:
    """Keep a profile, a tuned one in place of what runs have learned. Returns its path. Raises ProfileError."""
    path = kept_facts.path_of(KINDS[profile.origin], profile.identity)
    with disk_errors("written", path, ProfileError):
        kept_facts.write(KINDS[profile.origin], profile.identity, profile_to_json(profile))
    if profile.origin == "tuned":
        learned = kept_facts.path_of(KINDS["learned"], profile.identity)
        with disk_errors("deleted", learned, ProfileError):
            learned.unlink(missing_ok=True)
    return path


def forget(profile: Profile) -> Path:
    """Delete a profile and what runs have learned of the pair, and return the profile's path. Raises ProfileError."""
    paths = {origin: kept_facts.path_of(kind, profile.identity) for origin, kind in KINDS.items()}
    for path in paths.values():
        with disk_errors("deleted", path, ProfileError):
            path.unlink(missing_ok=True)
    return paths[profile.origin]


def export(profile: Profile, path: Path) -> None:
    """Write the profile to a file of the user's. Raises ProfileError."""
    with disk_errors("written", path, ProfileError):
        write_json(path.absolute(), profile_to_json(profile))


def load(path: Path) -> Profile:
    """The profile in a file of the user's. Raises ProfileError if it cannot be read or is not a profile."""
    with disk_errors("read", path, ProfileError):
        text = path.read_bytes()
    value = None  # which is no profile, as what is no JSON
    with suppress(ValueError):
        value = parse_json(text)
    try:
        return profile_from_json(value)
    except ProfileError as error:
        make = "`specrun tune` and then `specrun tune --export FILE` make one"
        raise ProfileError(f"{path}: {error}; {make}") from error


def find(identity: Mapping[str, Any], note: Callable[[str], None], origin: Origin = "tuned") -> Profile | None:
    """The profile of this pair on this machine, if there is one.

    identity: everything that it depends on, by part. note: called with a sentence about one that is damaged.
    """
    instead = "`specrun tune` makes a new one" if origin == "tuned" else "it is learned again"
    return kept_facts.recall(KINDS[origin], identity, profile_from_json, lambda why: note(f"{why}; {instead}"))


def saved(with_learned: bool = False) -> list[Profile]:
    """Every tuned profile that can be read, and with `with_learned` what runs have learned too, newest first."""
    profiles = []
    kinds = KINDS.values() if with_learned else ["profiles"]
    for kept in itertools.chain.from_iterable(map(kept_facts.every, kinds)):
        with suppress(ProfileError):
            profiles += [profile_from_json(kept.value)] if isinstance(kept, KeptFact) else []
    return sorted(profiles, key=lambda profile: profile.created, reverse=True)


def are_saved() -> bool:
    """Whether there is any tuned profile; reads none of them."""
    return any(kept_facts.folder("profiles").glob("*.json"))


def of_target(identity: Mapping[str, Any]) -> Profile | None:
    """The newest tuned profile whose identity differs from this one at most in the draft."""

    def without_draft(parts: Mapping[str, Any]) -> dict[str, Any]:
        return {**parts, "files": parts["files"][:1]}

    wanted = without_draft(identity)
    return next((profile for profile in saved() if without_draft(profile.identity) == wanted), None)


def all_of(identity: Mapping[str, Any], note: Callable[[str], None]) -> list[Profile]:
    """What is known of this pair on this machine: the profile, or what runs have learned; then what they have learned
    with another number of threads, that the user gave or that other programs left cores for, the newest first. The
    arguments are those of `find`.
    """

    def with_all_threads(parts: Mapping[str, Any]) -> dict[str, Any]:
        settings = parts.get("settings", {})
        models = {key: value for key, value in settings.items() if isinstance(value, dict)}
        open_ones = {of: {k: v for k, v in decided.items() if k != "threads"} for of, decided in models.items()}
        return {**parts, "settings": settings | open_ones}

    profile = find(identity, note) or find(identity, note, "learned")
    learned = [one for one in saved(with_learned=True) if one.origin == "learned" and one.identity != identity]
    others = [one for one in learned if with_all_threads(one.identity) == identity]
    return [profile, *others] if profile else others
