"""What surrounds specrun: free RAM, how much of it may be locked, other processes on the cores, and the hub."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from specrun.catalog.hub import address, is_offline
from specrun.catalog.hub.client import ask_whether_there
from specrun.display_text import size_text
from specrun.doctor import Finding
from specrun.errors import HubError
from specrun.hardware.cpu import LoadWatch, OtherLoad
from specrun.hardware.memory import Memory

_SCARCE = 0.1  # of all RAM; below it some systems end the largest process (earlyoom's default)
_HUB_SECONDS = 2.0  # for its answer
_SECONDS = 0.5  # in which other processes are watched
_PROC = Path("/proc/self")
_CAP_IPC_LOCK = 14  # in linux/capability.h: locks without a limit
_ALL_USERS = ["0", "0", "4294967295"]  # in uid_map: not inside a user namespace, where capabilities do not count


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


def lock_limit(proc: Path = _PROC) -> int | None:
    """Bytes that this process may lock into RAM; None without a limit. proc: folder that describes this process."""
    if sys.platform == "win32":
        return None
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    is_above = False
    with suppress(OSError):  # macOS
        status = (proc / "status").read_text("utf-8", "replace")
        capabilities = next((line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), "0")
        users = (proc / "uid_map").read_text("utf-8").split()
        is_above = bool(int(capabilities, 16) >> _CAP_IPC_LOCK & 1) and users == _ALL_USERS
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
    """What others take during half a second, in which this process does nothing."""
    watch = LoadWatch(with_names=True)
    time.sleep(_SECONDS)
    return watch.so_far()


def other_load(load: OtherLoad, wanted: int) -> Finding:
    """Whether as many threads as wanted find cores of their own."""
    by = f" ({', '.join(load.processes)})" if load.processes else ""
    detail = f"other programs hold {load.cores:.1f} of {load.n_cores} cores{by}"
    free = load.threads_beside(wanted)
    if free == wanted and load.cores < load.n_cores - 0.5:
        return Finding("other load", "ok", detail)
    threads = "1 thread of llama.cpp waits" if wanted == 1 else f"{wanted} threads of llama.cpp wait for each other"
    fix = "end them" + (f", or give `--threads {free}`, as most runs do by themselves" if free < wanted else "")
    return Finding("other load", "warn", f"{detail}, so that {threads}", fix)


def hub() -> Finding:
    """Whether the hub answers, which is waited for two seconds."""
    if is_offline():
        return Finding("hub", "ok", "not asked, because HF_HUB_OFFLINE is set; models that are here can be used")
    failures = [f"no answer from {address()} within {_HUB_SECONDS:g} seconds"]

    def ask() -> None:
        try:
            ask_whether_there(_HUB_SECONDS)
            failures.clear()
        except HubError as error:
            failures[:] = [str(error)]

    # A system's resolver may take longer than any limit that we set, and must not keep the command from ending.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_HUB_SECONDS)
    failed = failures[:1]
    if not failed:
        return Finding("hub", "ok", f"{address()} answers")
    fix = f"check the network, the proxy and HF_ENDPOINT: `curl -I {address()}`"
    return Finding("hub", "warn", f"{failed[0]}; only models that are here can be used", fix)
