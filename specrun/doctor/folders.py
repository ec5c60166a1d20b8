"""The folders that specrun writes to: what is free there, how fast models are read, whether saved profiles fit."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specrun import kept_facts, locations
from specrun.catalog import cache, hub
from specrun.decoding import prompt_folder
from specrun.display_text import size_text
from specrun.doctor import Finding
from specrun.hardware.storage import Storage
from specrun.kept_facts import KeptFact
from specrun.locations import file_bytes
from specrun.profiles import profile_files

_FULL = 1_000_000  # bytes; with less, nothing can be saved
_MOST_NAMED = 3  # profiles
_SLOW = 300e6  # bytes a second; between a hard disk's 200 MB/s and a SATA SSD's 500


@dataclass(frozen=True)
class Folder:
    """A folder that specrun writes to. enough: bytes that it should have free. variable: names another folder."""

    name: str
    path: Path
    enough: int
    variable: str


def folders() -> tuple[Folder, ...]:
    """All of them. A model takes gigabytes, the pair of `specrun demo` 430 MB, the rest little."""
    return (
        Folder("models", hub.cache_dir(), 10_000_000_000, "HF_HOME"),
        Folder("cache", locations.cache_dir(), 600_000_000, "SPECRUN_CACHE_DIR"),
        Folder("data", locations.data_dir(), 100_000_000, "SPECRUN_DATA_DIR"),
        Folder("configuration", locations.config_dir(), 0, "SPECRUN_CONFIG_DIR"),
    )


def writing(folder: Folder) -> Finding:
    """Whether the folder can be written, or made, and what is free there. Leaves nothing behind."""
    check = f"{folder.name} folder"
    elsewhere = f"{folder.variable}=/another/folder in the environment"
    try:
        there = locations.existing_folder(folder.path)
        free = shutil.disk_usage(there).free
        with tempfile.TemporaryFile(dir=there, buffering=0) as file:
            file.write(b"specrun")
    except OSError as error:
        return Finding(check, "fail", f"{folder.path} cannot be written: {error.strerror}", elsewhere)
    detail = f"{folder.path}, {size_text(free)} free"
    if free >= max(_FULL, folder.enough):
        return Finding(check, "ok", detail)
    space = f"free some (`specrun models list --here` shows models), or set {elsewhere}"
    if free < _FULL:
        return Finding(check, "fail", f"{detail}; nothing can be saved there", space)
    return Finding(check, "warn", f"{detail}; {size_text(folder.enough)} should be", space)


def largest_model() -> Path | None:
    """The largest model file on this machine, which tells most about the disk; None if there is none."""
    own = (path for folder in (locations.cache_dir(), locations.data_dir()) for path in folder.rglob("*.gguf"))
    return max((*(model.path for model in cache.models()), *own), key=file_bytes, default=None)


def disk_rate(storage: Storage | None) -> Finding:
    """How fast models are read. storage: under a model file; None if no model is here."""
    if storage is None or storage.bytes_per_second is None:
        why = "no model is here to read" if storage is None else "it could not be measured"
        return Finding("disk rate", "ok", f"unknown, because {why}")
    detail = f"{size_text(storage.bytes_per_second)}/s ({storage.device}, {storage.file_system})"
    if storage.bytes_per_second >= _SLOW:
        return Finding("disk rate", "ok", detail)
    detail += "; models load slowly, and weights that do not fit into RAM are read again in every pass"
    return Finding("disk rate", "warn", detail, "HF_HOME=/folder/on/an/ssd in the environment")


def facts_kept(surroundings: Mapping[str, Any]) -> list[Finding]:
    """What is kept of facts that took time to find out, and whether the tuned profiles among them are of this machine.

    surroundings: `hardware.machine.surroundings` of now.
    """
    kept = {kind: list(kept_facts.every(kind)) for kind in kept_facts.KINDS}
    profiles = [fact for fact in kept["profiles"] if isinstance(fact, KeptFact)]
    stale = []
    for profile in profiles:
        if changed := profile_files.changed_parts(profile.of, surroundings):
            stale.append(f"{' with '.join(filter(None, profile.value['pair'].values()))} ({changed} changed since)")
    fitting = Finding("profiles", "ok", str(len(profiles) or "none; `specrun tune` makes one, which makes runs faster"))
    if stale:
        detail = f"{len(profiles) - len(stale)} of {len(profiles)} fit; not used any more: {_listed(stale)}"
        fitting = Finding("profiles", "warn", detail, "`specrun tune` with the same models measures them again")
    known = (f"{kept_facts.KINDS[kind]} ({len(facts)})" for kind, facts in kept.items() if facts)
    detail = f"in {locations.data_dir()}: {', '.join(known) or 'none'}"
    damaged = [str(fact) for facts in kept.values() for fact in facts if isinstance(fact, Path)]
    if not damaged:
        return [fitting, Finding("kept facts", "ok", detail)]
    detail += f"; {len(damaged)} cannot be read, as files of an older specrun: {_listed(damaged)}"
    return [fitting, Finding("kept facts", "warn", detail, f"rm {' '.join(map(repr, damaged))}")]


def kept_prompts() -> Finding:
    """What is kept of prompts that were read: parts of people's texts."""
    kept = prompt_folder.files()
    if not kept:
        return Finding("prompts", "ok", "none is kept")
    size = size_text(sum(map(file_bytes, kept)))
    detail = f"{len(kept)} kept in {prompt_folder.folder()}, {size}; `specrun doctor --forget-prompts` deletes them"
    return Finding("prompts", "ok", detail)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more
