"""All checks in turn, and those of what surrounds specrun: free RAM, how much of it may be locked, other processes on
the cores, the folders that specrun writes to, how fast models are read, facts that are kept, and the hub.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil

import specrun
from specrun import kept_facts, locations
from specrun.catalog import cache
from specrun.catalog.file_names import telling_name
from specrun.catalog.hub import address, cache_dir, is_offline
from specrun.catalog.hub.client import ask_whether_there
from specrun.decoding import prompt_folder
from specrun.display_text import counted, size_text
from specrun.doctor import Finding, installation, loading_fix
from specrun.errors import HubError, LlamaError
from specrun.hardware.cpu import LoadWatch, OtherLoad, allowed_cores, cpu_features, read_flags, read_quota, usable_cores
from specrun.hardware.machine import Machine, gpu_driver, nvidia_card, offload_devices, surroundings
from specrun.hardware.memory import PROC, Memory, kernel_text
from specrun.hardware.storage import Storage
from specrun.kept_facts import KeptFact
from specrun.loading import outdated
from specrun.locations import file_bytes

_SCARCE = 0.1  # of all RAM; below it some systems end the largest process (earlyoom's default)
_HUB_SECONDS = 2.0  # for its answer
_CAP_IPC_LOCK = 14  # in linux/capability.h: locks without a limit
_ALL_USERS = ["0", "0", "4294967295"]  # in uid_map: not inside a user namespace, where capabilities do not count
_FULL = 1_000_000  # bytes; with less, nothing can be saved
_MOST_NAMED = 3  # profiles
_SLOW = 300e6  # bytes a second; between a hard disk's 200 MB/s and a SATA SSD's 500


def examine(show: Callable[[str], None], debug: bool = False) -> Iterator[Finding]:
    """Yield the findings of this machine. Nothing is downloaded, and only what llama.cpp was checked for is kept.

    show: shows what is being looked at. debug: show what llama.cpp prints.
    """
    show("watching what else runs")
    load = watched()  # before anything of our own runs
    show("asking llama.cpp what it was compiled with")
    try:
        build = installation.read_build(debug)
    except LlamaError as error:
        yield Finding("llama.cpp", "fail", f"it cannot be loaded: {error}", loading_fix(str(error)))
    else:
        yield from _of_build(build, show, debug)
    ram = Memory.read()
    yield free(ram, psutil.virtual_memory().total)
    yield lockable(lock_limit(), ram.available_bytes)
    yield cpu_quota(read_quota(), len(allowed_cores()))
    yield other_load(load, usable_cores())
    yield from map(writing, folders())
    show("reading from the disk")
    model = largest_model()
    yield disk_rate(Storage.read(model) if model else None)
    show("waiting for the hub")
    yield hub()


def _of_build(build: installation.Build, show: Callable[[str], None], debug: bool) -> Iterator[Finding]:
    yield installation.versions(specrun.__version__, build)
    n_gpus = len(offload_devices(build.devices))
    yield installation.backends(build.backends, n_gpus, gpu_driver(), nvidia_card())
    yield installation.instructions(cpu_features(build.system_info), read_flags(), build.backends)
    show("running a layer on each device")
    yield from installation.devices(build.devices, partial(installation.run_layer, debug=debug), build.backends)
    show("checking what specrun relies on in llama.cpp")
    yield from installation.check_facts(build.backends, debug)
    yield from facts_kept(surroundings(Machine.read(build.devices, build.system_info, build.identity)))
    yield kept_prompts()


# --- memory and cores ------------------------------------------------------------------------------------------------


def free(memory: Memory, installed: int) -> Finding:
    """Free RAM within the limits of cgroups. installed: bytes of RAM of the machine."""
    detail = f"{size_text(memory.available_bytes)} of {size_text(memory.total_bytes)} free"
    if memory.total_bytes < installed:
        detail += f", as a cgroup allows of the machine's {size_text(installed)}"
    if memory.available_bytes >= _SCARCE * memory.total_bytes:
        return Finding("memory", "ok", detail)
    fix = "end what `ps aux --sort=-rss | head` lists"
    return Finding("memory", "warn", f"{detail}; weights would be read from disk again", fix)


def lockable(limit: int | None, available: int) -> Finding:
    """Whether weights can be locked into RAM. limit: bytes as `lock_limit` gives them. available: bytes of free RAM."""
    if limit is None:
        return Finding("lockable memory", "ok", "unlimited")
    if limit >= available:
        return Finding("lockable memory", "ok", size_text(limit))
    detail = f"{size_text(limit)}, less than the {size_text(available)} that are free, so weights can be swapped out"
    fix = (
        "`ulimit -l unlimited`, if the system allows it; else "
        '`echo "$USER - memlock unlimited" | sudo tee -a /etc/security/limits.conf`, and log in again'
    )
    return Finding("lockable memory", "warn", detail, fix)


def lock_limit(proc: Path = PROC) -> int | None:
    """Bytes that this process may lock into RAM; None without a limit. proc: folder that describes this process."""
    if sys.platform == "win32":
        return None
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    status = kernel_text(proc / "status").splitlines()
    capabilities = next((line.split()[1] for line in status if line.startswith("CapEff:")), "0")
    is_for_all = kernel_text(proc / "uid_map").split() == _ALL_USERS
    is_above = is_for_all and bool(int(capabilities, 16) >> _CAP_IPC_LOCK & 1)
    return None if is_above or limit == resource.RLIM_INFINITY else limit


def cpu_quota(quota: float | None, n_cores: int) -> Finding:
    """How much of the cores' time cgroups leave. quota: in cores; None without a limit. n_cores: that may be used."""
    if quota is None or quota >= n_cores:
        return Finding("cpu quota", "ok", "none")
    threads = "1 thread computes" if quota < 2 else f"{int(quota)} threads compute"
    detail = f"{round(quota, 2):g} of {n_cores} cores, as a cgroup allows, so that {threads}"
    if quota >= 1:
        return Finding("cpu quota", "ok", detail)
    fix = "allow a core or more, as by `docker run --cpus`, or CPUQuota= of a systemd unit"
    return Finding("cpu quota", "warn", f"{detail} and stands still {1 - quota:.0%} of the time", fix)


def watched() -> OtherLoad:
    """What others take for a moment, in which this process does nothing."""
    return LoadWatch(with_names=True).after()


def other_load(load: OtherLoad, wanted: int) -> Finding:
    """Whether as many threads as wanted find cores of their own."""
    detail = str(load)
    free = load.threads_beside(wanted)
    if free == wanted and load.cores < load.n_cores - 0.5:
        return Finding("other load", "ok", detail)
    threads = "1 thread of llama.cpp waits" if wanted == 1 else f"{wanted} threads of llama.cpp wait for each other"
    # `--threads` is not advised: a run with it does not follow the profile of `specrun tune`.
    fix = "end them" + (f"; until then most runs compute with {counted(free, 'thread')}" if free < wanted else "")
    return Finding("other load", "warn", f"{detail}, so that {threads}", fix)


# --- folders, facts and the hub --------------------------------------------------------------------------------------


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
        Folder("models", cache_dir(), 10_000_000_000, "HF_HOME"),
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
        if changed := outdated.changed_parts(profile.of, surroundings):
            pair = profile.value["pair"]
            files, folders = [pair["target"], pair["draft"]], pair.get("folders", ("", ""))
            names = [telling_name(file, folder) for file, folder in zip(files, folders, strict=True) if file]
            stale.append(f"{' with '.join(names)} ({changed} changed since)")
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


def hub() -> Finding:
    """Whether the hub answers, which is waited for two seconds."""
    if is_offline():
        return Finding("hub", "ok", "not asked, because HF_HUB_OFFLINE is set; models that are here can be used")
    problem = f"no answer from {address()} within {_HUB_SECONDS:g} seconds"

    def ask() -> None:
        nonlocal problem
        try:
            ask_whether_there(_HUB_SECONDS)
            problem = ""
        except HubError as error:
            problem = str(error)

    # A system's resolver may take longer than any limit that we set, and must not keep the command from ending.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_HUB_SECONDS)
    if not (why := problem):
        return Finding("hub", "ok", f"{address()} answers")
    fix = f"check the network, the proxy and HF_ENDPOINT: `curl -I {address()}`"
    return Finding("hub", "warn", f"{why}; only models that are here can be used", fix)
