"""The profile that belongs to a pair on this machine, if there is one, and what profiles tell of the machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from specrun.catalog.entries import Entry
from specrun.catalog.gguf_file import GgufFile
from specrun.errors import ProfileError
from specrun.hardware import machine
from specrun.hardware.fit import Rates
from specrun.llama import devices, library
from specrun.llama_settings import LlamaSettings, ResidencyChoice
from specrun.locations import parse_json, set_aside
from specrun.profiles import profile_files
from specrun.profiles.profile import DamagedProfileError, Profile


@dataclass(frozen=True)
class Found:
    """The result of a search for a profile."""

    profile: Profile | None  # None if this machine, build and pair have none that can be read
    notice: str | None = None  # why an earlier profile of the pair cannot be used, if there is one
    is_set_aside: bool = False  # whether its file was renamed just now, so that the notice has to be shown


@dataclass(frozen=True)
class Subject:
    """What a profile describes, apart from the machine and llama.cpp's build: the files, and what the user has decided.

    ctx_size: tokens of prompt and answer. settings, draft_settings: what the user has decided of the two models.
    residency: as in `RunOptions`; where weights do not fit into RAM, all times depend on it.
    """

    target: GgufFile
    draft: GgufFile | None
    ctx_size: int
    settings: LlamaSettings
    draft_settings: LlamaSettings
    exact: bool
    residency: ResidencyChoice = "auto"

    @property
    def choices(self) -> dict[str, Any]:
        chosen = {"target": _decided(self.settings), "draft": _decided(self.draft_settings), "exact": self.exact}
        return chosen | ({} if self.residency == "auto" else {"residency": self.residency})


def identify(subject: Subject) -> dict[str, Any]:
    """What a profile of this subject depends on: the machine, llama.cpp's build, and the subject itself."""
    return machine.identity(
        devices.this_machine(subject.settings.rpc),
        target=subject.target.identity,
        draft=subject.draft.identity if subject.draft else None,
        ctx_size=subject.ctx_size,
        settings=subject.choices,
    )


def offload_min_batch(subject: Subject) -> int | None:
    """The threshold of offloading that the profile of this subject was measured with; None for llama.cpp's own.

    It has to be known before llama.cpp looks for devices, which are a part of a profile's identity; so everything else
    is compared. Without a draft, profiles with any draft count.
    """
    files = [file.identity for file in (subject.target, subject.draft) if file]
    wanted = {
        "llama.cpp": library.build(),
        "llama-cpp-python": library.bindings_version(),
        "context": subject.ctx_size,
        "settings": json.loads(json.dumps(subject.choices)),
    }
    found: dict[str, int] = {}
    for path in profile_files.folder().glob("*.json"):
        # This is asked before every run, and the import of the codec takes longer than reading plain JSON.
        try:
            value = parse_json(path.read_bytes())
            threshold, identity = value["settings"].get("offload_min_batch"), value["identity"]
            same_files = identity.get("files", [])[: len(files)] == files
            if threshold is not None and same_files and wanted.items() <= identity.items():
                found[value["created"]] = int(threshold)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # damaged; who wants this profile says so
            continue
    return found[max(found)] if found else None


def _decided(settings: LlamaSettings) -> dict[str, Any]:
    return {name: value for name, value in asdict(settings).items() if value is not None}


def find_any(identity: dict[str, Any]) -> Found:
    """The profile with this identity, or without one what runs have learned; else as `find`."""
    found = find(identity)
    if found.profile:
        return found
    try:
        learned = profile_files.find(profile_files.learned_path_of(machine.fingerprint(identity)))
    except ProfileError:
        return found  # it is replaced by what the next run learns
    return Found(learned) if learned else found


def find(identity: dict[str, Any]) -> Found:
    """The profile with this identity, or what has changed since the same files were tuned."""
    path = profile_files.path_of(machine.fingerprint(identity))
    try:
        profile = profile_files.find(path)
    except DamagedProfileError as error:
        aside = set_aside(path)
        return Found(None, f"{error}, and {aside}; going on without it (`specrun tune` makes a new one)", True)
    except ProfileError as error:
        return Found(None, f"{error}; going on without it (`specrun tune` makes a new one)")
    if profile:
        return Found(profile)
    changed = profile_files.in_words(profile_files.changed_parts(identity))
    if not changed:
        return Found(None)
    return Found(None, f"this pair was tuned before, but {changed} changed since; `specrun tune` measures again")


def known_rates(catalog: Mapping[str, Entry]) -> Rates:
    """The rates that the newest profiles of this machine tell, and assumed ones for the rest.

    A dense model of the catalog that lies in one memory tells the rate of that memory: its bytes over the time of a
    plain pass. The rate of the disk was measured when a profile was made.
    """
    sizes = {
        entry.file.rsplit("/", 1)[-1]: entry.expected_bytes
        for entry in catalog.values()
        if entry.kind == "dense" and entry.expected_bytes
    }
    found: dict[str, float] = {}
    for profile in profile_files.saved():
        n_bytes = sizes.get(profile.target)
        if n_bytes and (field := {"in VRAM": "vram", "in RAM": "ram"}.get(profile.regime)):
            found.setdefault(field, n_bytes / profile.costs.target.ms(1, 0) * 1e3)
        storage = profile.hardware.get("storage")
        disk = storage.get("bytes_per_second") if isinstance(storage, dict) else None
        if isinstance(disk, (int, float)) and disk > 0:
            found.setdefault("disk", float(disk))
    return Rates(**found, measured=tuple(found))
