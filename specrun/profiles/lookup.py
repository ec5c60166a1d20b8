"""The profile that belongs to a pair on this machine, if there is one."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from specrun.catalog.gguf_file import GgufFile
from specrun.errors import ProfileError
from specrun.hardware import machine
from specrun.hardware.machine import Machine
from specrun.llama import devices, library
from specrun.llama_settings import LlamaSettings, ResidencyChoice
from specrun.profiles import profile_files
from specrun.profiles.profile import Profile

# What a user calls the parts of an identity.
_NAMES = {"memory": "RAM", "driver": "GPU driver", "devices": "GPUs", "context": "--ctx-size", "settings": "options"}


@dataclass(frozen=True)
class Found:
    """The result of a search for a profile."""

    profile: Profile | None  # None if this machine, build and pair have none that can be read
    notice: str | None = None  # why an earlier profile of the pair cannot be used, if there is one


def identify(
    target: GgufFile,
    draft: GgufFile | None,
    ctx_size: int,
    settings: LlamaSettings,
    draft_settings: LlamaSettings,
    exact: bool,
    residency: ResidencyChoice = "auto",
) -> dict[str, Any]:
    """What a profile of this pair depends on: the machine, llama.cpp's build, both files and the user's options.

    ctx_size: tokens of prompt and answer. settings, draft_settings: those that the user has decided. residency: as in
    `RunOptions`; where weights do not fit into RAM, all times depend on it.
    """
    here = Machine.read(None, devices.devices(), devices.system_info())
    return machine.identity(
        here,
        llama_build=library.build(),
        bindings=library.bindings_version(),
        target=target.shards,
        draft=draft.shards if draft else None,
        ctx_size=ctx_size,
        settings={"target": _decided(settings), "draft": _decided(draft_settings), "exact": exact}
        | ({} if residency == "auto" else {"residency": residency}),
    )


def _decided(settings: LlamaSettings) -> dict[str, Any]:
    return {name: value for name, value in asdict(settings).items() if value is not None}


def find_any(identity: dict[str, Any]) -> Found:
    """The profile with this identity, or without one what runs have learned; else as `find`."""
    found = find(identity)
    if found.profile:
        return found
    try:
        learned = profile_files.find_learned(machine.fingerprint(identity))
    except ProfileError:
        return found  # it is replaced by what the next run learns
    return Found(learned) if learned else found


def find(identity: dict[str, Any]) -> Found:
    """The profile with this identity, or what has changed since the same files were tuned."""
    try:
        profile = profile_files.find(machine.fingerprint(identity))
    except ProfileError as error:
        return Found(None, f"{error}; going on without it (`specrun tune` makes a new one)")
    if profile:
        return Found(profile)
    changed = ", ".join(_NAMES.get(part, part) for part in profile_files.changed_parts(identity))
    if not changed:
        return Found(None)
    return Found(None, f"this pair was tuned before, but {changed} changed since; `specrun tune` measures again")
