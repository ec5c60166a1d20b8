"""The profile that belongs to a pair on this machine, if there is one."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from specrun.catalog.gguf_file import GgufFile
from specrun.errors import ProfileError
from specrun.hardware import machine
from specrun.hardware.machine import Machine
from specrun.llama import devices, library
from specrun.llama_settings import LlamaSettings
from specrun.profiles import profile_files as storage
from specrun.profiles.profile import Profile

_NAMES = {"memory": "RAM", "driver": "GPU driver", "devices": "GPUs", "context": "--ctx-size", "settings": "options"}


@dataclass(frozen=True)
class Found:
    """profile: that of this very machine, or None. notice: why there is none although there was one, or None."""

    profile: Profile | None
    notice: str | None = None


def identify(
    target: GgufFile,
    draft: GgufFile | None,
    ctx_size: int,
    settings: LlamaSettings,
    draft_settings: LlamaSettings,
    exact: bool,
) -> dict[str, Any]:
    """What a profile of this pair depends on: this machine, llama.cpp's build, both files, and what the user decided.

    ctx_size: tokens of prompt and answer. settings, draft_settings: what the user decided about running the models.
    """
    here = Machine.read(None, devices.devices(), devices.system_info())
    return machine.identity(
        here,
        llama_build=library.build(),
        bindings=library.bindings_version(),
        target=target.shards,
        draft=draft.shards if draft else None,
        ctx_size=ctx_size,
        settings={"target": _decided(settings), "draft": _decided(draft_settings), "exact": exact},
    )


def _decided(settings: LlamaSettings) -> dict[str, Any]:
    return {name: value for name, value in asdict(settings).items() if value is not None}


def find(identity: dict[str, Any]) -> Found:
    """The profile of this identity; else whether a profile of the same files is stale, and by what."""
    try:
        found = storage.find(machine.fingerprint(identity))
    except ProfileError as error:
        return Found(None, f"{error}; going on without it (`specrun tune` makes a new one)")
    if found:
        return Found(found)
    old = storage.stale(identity)
    if old is None:
        return Found(None)
    _, changed = old
    what = ", ".join(_NAMES.get(part, part) for part in changed)
    return Found(None, f"this pair was tuned before, but {what} changed since; `specrun tune` measures again")
