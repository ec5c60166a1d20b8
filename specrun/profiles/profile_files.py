"""Profiles as files: those that are kept of this machine (`kept_facts`), and those that users export and import."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from specrun import kept_facts
from specrun.catalog.entries import Entry
from specrun.errors import ProfileError
from specrun.hardware.fit import Rates
from specrun.kept_facts import KeptFact
from specrun.locations import parse_json, write_json
from specrun.profiles.codec import profile_from_json, profile_to_json
from specrun.profiles.profile import Origin, Profile, now

KINDS: Mapping[Origin, str] = {"tuned": "profiles", "learned": "profiles/learned"}  # of facts
UNFINISHED = "profiles/unfinished"
# What a user calls the parts of an identity.
_NAMES = {
    "memory": "RAM", "driver": "GPU driver", "devices": "GPUs", "context": "--ctx-size", "settings": "options",
    "libraries": "llama.cpp's libraries",
}  # fmt: skip


def check_folder() -> None:
    """Raise ProfileError if no profile could be saved; `specrun tune` asks before it measures for minutes."""
    try:
        kept_facts.write(UNFINISHED, {}, {}).unlink()
    except OSError as error:
        folder = kept_facts.folder("profiles")
        raise ProfileError(
            f"profiles cannot be written to {folder}: {error.strerror}; SPECRUN_DATA_DIR names another folder"
        ) from error


def save(profile: Profile) -> Path:
    """Keep a profile, a tuned one in place of what runs have learned, and return its path. Raises ProfileError."""
    try:
        path = kept_facts.write(KINDS[profile.origin], profile.identity, profile_to_json(profile))
    except OSError as error:
        path = kept_facts.path_of(KINDS[profile.origin], profile.identity)
        raise ProfileError(f"the profile cannot be written to {path}: {error.strerror}") from error
    if profile.origin == "tuned":
        kept_facts.path_of(KINDS["learned"], profile.identity).unlink(missing_ok=True)
    return path


def forget(profile: Profile) -> Path:
    """Delete a profile and what runs have learned of the pair, and return the profile's path. Raises ProfileError."""
    paths = {origin: kept_facts.path_of(kind, profile.identity) for origin, kind in KINDS.items()}
    for path in paths.values():
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise ProfileError(f"{path} cannot be deleted: {error.strerror}") from error
    return paths[profile.origin]


def export(profile: Profile, path: Path) -> None:
    """Write the profile to a file of the user's. Raises ProfileError."""
    try:
        write_json(path.absolute(), profile_to_json(profile))
    except OSError as error:
        raise ProfileError(f"{path} cannot be written: {error.strerror}") from error


def load(path: Path) -> Profile:
    """The profile in a file of the user's. Raises ProfileError if it cannot be read or is not a profile."""
    try:
        return profile_from_json(parse_json(path.read_bytes()))
    except OSError as error:
        raise ProfileError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ProfileError(f"{path} is not a profile of `specrun tune`") from error
    except ProfileError as error:
        raise ProfileError(f"{path}: {error}") from error


def find(identity: Mapping[str, Any], note: Callable[[str], None], origin: Origin = "tuned") -> Profile | None:
    """The profile of this pair on this machine, if there is one.

    identity: everything that it depends on, by part. note: called with a sentence about one that is damaged.
    """
    kind = KINDS[origin]
    if not kept_facts.path_of(kind, identity).exists():
        return None
    instead = "`specrun tune` makes a new one" if origin == "tuned" else "it is learned again"
    return kept_facts.recall(kind, identity, profile_from_json, lambda why: note(f"{why}; {instead}"))


def saved(with_learned: bool = False) -> Iterator[Profile]:
    """Every tuned profile that can be read, and with `with_learned` what runs have learned too, newest first."""
    profiles = []
    kinds = KINDS.values() if with_learned else ["profiles"]
    for kept in itertools.chain.from_iterable(map(kept_facts.every, kinds)):
        try:
            profiles += [profile_from_json(kept.value)] if isinstance(kept, KeptFact) else []
        except ProfileError:
            continue
    return iter(sorted(profiles, key=lambda profile: profile.created, reverse=True))


def are_saved() -> bool:
    """Whether there is any tuned profile; reads none of them."""
    return any(kept_facts.folder("profiles").glob("*.json"))


def of_target(identity: Mapping[str, Any]) -> Profile | None:
    """The newest tuned profile whose identity differs from this one at most in the draft."""

    def without_draft(parts: Mapping[str, Any]) -> dict[str, Any]:
        return {**parts, "files": parts.get("files", [None])[:1]}

    wanted = without_draft(identity)
    return next((profile for profile in saved() if without_draft(profile.identity) == wanted), None)


def all_of(identity: Mapping[str, Any], note: Callable[[str], None]) -> list[Profile]:
    """What is known of this pair on this machine: the profile, or what runs have learned; then what they have learned
    with fewer threads, as other programs held cores, the newest first. The arguments are those of `find`.
    """

    def with_all_threads(parts: Mapping[str, Any]) -> dict[str, Any]:
        settings = parts.get("settings", {})
        models = {key: value for key, value in settings.items() if isinstance(value, dict)}
        open_ones = {of: {k: v for k, v in decided.items() if k != "threads"} for of, decided in models.items()}
        return {**parts, "settings": settings | open_ones}

    profile = find(identity, note) or find(identity, note, "learned")
    learned = [one for one in saved(with_learned=True) if one.origin == "learned" and one.identity != identity]
    fewer = [one for one in learned if with_all_threads(one.identity) == identity]
    return [profile, *fewer] if profile else fewer


def why_outdated(identity: Mapping[str, Any], with_learned: bool = False) -> str | None:
    """A line about the newest tuned profile of the same files, which something has changed since; None without one.

    with_learned: whether it is about what runs have learned, if no profile was tuned.
    """
    for profile in sorted(saved(with_learned), key=lambda profile: profile.origin != "tuned"):
        is_same = profile.identity.get("files") == identity.get("files")
        if is_same and (changed := changed_parts(profile.identity, identity)):
            if profile.origin == "tuned":
                return f"this pair was tuned before, but {changed} changed since; `specrun tune` measures again"
            return (
                f"runs have learned this pair with other {changed} (`specrun tune --list`); `specrun tune` measures it"
            )
    return None


def changed_parts(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The parts of an identity that are not as they were, as a user calls them."""
    return ", ".join(_NAMES.get(part, part) for part, value in now.items() if before.get(part) != value)


def keep_rates(read: Mapping[str, float], is_busy: bool) -> None:
    """Keep at how many bytes a second passes have just read, by the names of the rates in `Rates`. is_busy: whether
    other programs held cores; such rates count where no others are known.
    """
    of = _of_passes(is_busy)
    _, before = kept_facts.recall("rates", of, _kept_rates) or ("", {})
    kept_facts.remember("rates", of, {"created": now(), "bytes_per_second": {**before, **read}})


def known_rates(catalog: Mapping[str, Entry]) -> Rates:
    """The rates that were measured last on this machine, and assumed ones for the rest: those that were kept, and those
    that profiles tell.

    A dense model of the catalog that lies in one memory tells the rate of that memory: its bytes over the time of a
    plain pass. The rate of the disk was measured when a profile was made.
    """
    sizes = {
        entry.file.rsplit("/", 1)[-1]: entry.expected_bytes
        for entry in catalog.values()
        if entry.kind == "dense" and entry.expected_bytes
    }
    told = [(profile.created, _told_by(profile, sizes)) for profile in (saved() if are_saved() else ())]
    kept, busy = (kept_facts.recall("rates", _of_passes(is_busy), _kept_rates) or ("", {}) for is_busy in (False, True))
    found: dict[str, float] = {}
    for _, rates in sorted([*told, kept], key=lambda one: one[0]):
        found |= rates
    only_busy = {name: rate for name, rate in busy[1].items() if name not in found}
    return Rates(**found, **only_busy, measured=(*found, *only_busy), busy=tuple(only_busy))


def _told_by(profile: Profile, sizes: Mapping[str, int]) -> dict[str, float]:
    """The rates that a profile tells, by their names in `Rates`. sizes: bytes of dense models, by their files."""
    found: dict[str, float] = {}
    n_bytes = sizes.get(profile.target)
    if n_bytes and (field := {"in VRAM": "vram", "in RAM": "ram"}.get(profile.regime)):
        found[field] = n_bytes / profile.costs.target.ms(1, 0) * 1e3
    storage = profile.hardware.get("storage")
    disk = storage.get("bytes_per_second") if isinstance(storage, dict) else None
    if isinstance(disk, (int, float)) and disk > 0:
        found["disk"] = float(disk)
    return found


def _of_passes(is_busy: bool) -> dict[str, Any]:
    """What the rates at which passes read depend on."""
    return {"read by": "passes", "beside other programs": is_busy}


def _kept_rates(value: Any) -> tuple[str, dict[str, float]]:
    """When rates were kept, and the rates by their names in `Rates`."""
    rates = value["bytes_per_second"]
    return str(value["created"]), {name: max(float(rates[name]), 1.0) for name in ("ram", "disk") if name in rates}
