"""Where profiles are kept: JSON files in the user's data folder, named by their fingerprints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from specrun.errors import ProfileError
from specrun.locations import data_dir, parse_json, write_json
from specrun.profiles.profile import DamagedProfileError, Profile

# What a user calls the parts of an identity.
_NAMES = {"memory": "RAM", "driver": "GPU driver", "devices": "GPUs", "context": "--ctx-size", "settings": "options"}


def folder() -> Path:
    """The folder of all profiles."""
    return data_dir() / "profiles"


def path_of(fingerprint: str) -> Path:
    """The file of the profile with this fingerprint."""
    return folder() / f"{fingerprint}.json"


def check_folder() -> None:
    """Raise ProfileError if no profile could be saved; `specrun tune` asks before it measures for minutes."""
    check = folder() / "unfinished" / "check.json"
    try:
        write_json(check, {})
        check.unlink()
    except OSError as error:
        raise ProfileError(
            f"profiles cannot be written to {folder()}: {error.strerror}; SPECRUN_DATA_DIR names another folder"
        ) from error


def save(profile: Profile) -> Path:
    """Write the profile to its file, in place of what runs have learned, and return the path. Raises ProfileError."""
    path = path_of(profile.fingerprint)
    _write(profile, path, f"the profile cannot be written to {path}")
    learned_path_of(profile.fingerprint).unlink(missing_ok=True)
    return path


def export(profile: Profile, path: Path) -> None:
    """Write the profile to this file. Where two processes do so, what is written last stays. Raises ProfileError."""
    _write(profile, path.absolute(), f"{path} cannot be written")


def _write(profile: Profile, path: Path, failure: str) -> None:
    from specrun.profiles.codec import profile_to_json

    try:
        write_json(path, profile_to_json(profile))
    except OSError as error:
        raise ProfileError(f"{failure}: {error.strerror}") from error


def forget(profile: Profile) -> Path:
    """Delete a profile and what runs have learned of the pair, and return the profile's path. Raises ProfileError."""
    path, learned = path_of(profile.fingerprint), learned_path_of(profile.fingerprint)
    for kept in (path, learned):
        try:
            kept.unlink(missing_ok=True)
        except OSError as error:
            raise ProfileError(f"{kept} cannot be deleted: {error.strerror}") from error
    return learned if profile.origin == "learned" else path


def learned_path_of(fingerprint: str) -> Path:
    """The file of what runs have learned, which is apart from profiles so that it can never replace a tuned one."""
    return folder() / "learned" / f"{fingerprint}.json"


def load(path: Path) -> Profile:
    """The profile in a file. Raises ProfileError if the file cannot be read or is not a profile."""
    from specrun.profiles.codec import profile_from_json

    try:
        return profile_from_json(parse_json(path.read_bytes()))
    except OSError as error:
        raise ProfileError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise DamagedProfileError(f"{path} is not a profile of `specrun tune`") from error
    except ProfileError as error:
        raise type(error)(f"{path}: {error}") from error


def saved(with_learned: bool = False) -> Iterator[Profile]:
    """Every tuned profile that can be read, and with `with_learned` what runs have learned too, newest first."""
    profiles = []
    learned = (folder() / "learned").glob("*.json") if with_learned else ()
    for path in (*folder().glob("*.json"), *learned):
        try:
            profiles.append(load(path))
        except ProfileError:
            continue
    return iter(sorted(profiles, key=lambda profile: profile.created, reverse=True))


def are_saved() -> bool:
    """Whether there is any profile; reads none of them."""
    return any(folder().glob("*.json"))


def find(path: Path) -> Profile | None:
    """The profile in this file, or None. Raises ProfileError if the file is damaged."""
    return load(path) if path.exists() else None


def of_target(identity: dict[str, Any]) -> Profile | None:
    """The newest profile whose identity differs from this one at most in the draft."""

    def without_draft(parts: dict[str, Any]) -> dict[str, Any]:
        return parts | {"files": parts.get("files", [None])[:1]}

    wanted = without_draft(identity)
    return next((profile for profile in saved() if without_draft(profile.identity) == wanted), None)


def in_words(parts: Iterable[str]) -> str:
    """Parts of an identity as a user calls them, separated by commas."""
    return ", ".join(_NAMES.get(part, part) for part in parts)


def changed_parts(identity: dict[str, Any]) -> list[str]:
    """The parts of the identity that differ from the newest other profile of the same files; empty without one."""
    for profile in saved():
        if profile.identity.get("files") == identity.get("files"):
            changed = [part for part, value in identity.items() if profile.identity.get(part) != value]
            if changed:
                return changed
    return []
