"""Where profiles are kept: JSON files in the user's data folder, named by their fingerprints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specrun.errors import ProfileError
from specrun.locations import data_dir, write_json
from specrun.profiles.profile import Profile


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
