"""The profile that belongs to a pair on this machine, if there is one."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from specrun.catalog.gguf_file import GgufFile
from specrun.engine.run_options import RuntimeOptions
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


def identify(options: RuntimeOptions) -> dict[str, Any]:
    """What a profile for these options depends on. Raises ModelFileError for a file that cannot be read."""
    here = Machine.read(None, devices.devices(), devices.system_info())
    target = GgufFile.read(options.target)
    return machine.identity(
        here,
        llama_build=library.build(),
        bindings=library.bindings_version(),
        target=target.shards,
        draft=GgufFile.read(options.draft).shards if options.draft else None,
        ctx_size=options.context_length(target.n_ctx_train),
        settings={
            "target": _decided(options.settings),
            "draft": _decided(options.draft_settings),
            "exact": options.exact,
        },
    )


def of_target(options: RuntimeOptions) -> Profile | None:
    """What is known of the target alone, for text without a draft: from the newest profile of it, with any draft, so
    that the settings are those that text with a draft is written with, and it is the same text.
    """
    found = storage.of_target(identify(options)) if storage.are_saved() else None
    return found.without_draft(options.exact) if found else None


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
