"""The RAM of this machine, how much of it this process may use and whether it runs short; the kernel's cgroups."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

PROC, CGROUPS = Path("/proc/self"), Path("/sys/fs/cgroup")


def kernel_text(path: Path) -> str:
    """The text of a file of the kernel; empty if there is none, as on macOS or in a sandbox without /proc."""
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def groups(controller: str, proc: Path, cgroups: Path) -> Iterator[tuple[Path, int]]:
    """The folders of a process's group and of all groups above it, in every hierarchy with a controller such as
    `memory`, each with its version of cgroups, 1 or 2.

    proc: folder that describes the process. cgroups: where the system mounts the groups.
    """
    for line in kernel_text(proc / "cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number != "0" and controller not in controllers.split(","):
            continue
        version, mount = (2, cgroups) if number == "0" else (1, cgroups / controller)
        # In a container the path may be the host's; only groups below the mounted group are visible.
        group = mount / path.lstrip("/")
        group = group if group.is_dir() else mount
        while group.is_relative_to(mount):
            yield group, version
            group = group.parent


# RAM that is left free for the rest of this process, for the page cache of programs and libraries, and for whatever
# else runs: a share of what is available, and the least bytes. Some systems end the largest process when less than 10 %
# are available (earlyoom's default).
_MARGIN_SHARE = 0.12
_LEAST_MARGIN = 64_000_000
# Seconds between two looks at the memory; a look takes a millisecond or two. With a look every second, the system ended
# a process under a cap of 700 MB while another process took 80 MB a second.
_INTERVAL = 0.25
_SHORT = 0.5  # memory is short below this share of the margin, so that small errors of the plan do not count


@dataclass(frozen=True)
class Memory:
    """RAM in bytes, bounded by the limits of this process's cgroups (containers, batch systems)."""

    total_bytes: int
    available_bytes: int  # that can still be allocated, including memory that the page cache gives up

    @classmethod
    def read(cls, proc: Path = PROC, cgroups: Path = CGROUPS) -> Memory:
        """The current state. proc: folder that describes this process. cgroups: where the system mounts them."""
        memory = psutil.virtual_memory()
        total, available = int(memory.total), int(memory.available)
        for limit, used in cgroup_limits(proc, cgroups):
            total = min(total, limit)
            available = min(available, max(limit - used, 0))
        return cls(total, available)


def held_bytes() -> int:
    """Bytes of RAM that this process holds now: what it allocated, and those pages of model files that it has mapped
    and used.
    """
    return int(psutil.Process().memory_info().rss)


def margin_bytes(free_bytes: int) -> int:
    """Bytes of RAM to leave free, where `free_bytes` are free before the models are loaded."""
    return max(int(free_bytes * _MARGIN_SHARE), _LEAST_MARGIN)


class Pressure:
    """Compares free memory with the margin that the plan of resident weights left free.

    margin: bytes that should be free. free: returns how many bytes are free, the page cache included. clock: seconds.
    """

    def __init__(self, margin: int, free: Callable[[], int], clock: Callable[[], float] = time.monotonic) -> None:
        self._margin = margin
        self._free = free
        self._clock = clock
        self._looked = clock()

    @classmethod
    def watch(cls, free_bytes: int) -> Pressure:
        """Watch the margin of a plan that was made when so many bytes were free, within the limits of this machine and
        this process's cgroups.
        """
        return cls(margin_bytes(free_bytes), lambda: Memory.read().available_bytes)

    def shortage(self) -> int:
        """Bytes to free until the margin is free; 0 while half of it is, and for 0.25 s after a look at the memory."""
        now = self._clock()
        if now - self._looked < _INTERVAL:
            return 0
        self._looked = now
        free = self._free()
        return self._margin - free if free < _SHORT * self._margin else 0


# The names in each version of cgroups: of the files of limit and usage, and of the keys in memory.stat that count pages
# of files, without shared memory, which cannot be dropped.
_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_active_file"),
    2: ("memory.max", "memory.current", "inactive_file", "active_file"),
}


def cgroup_limits(proc: Path, cgroups: Path) -> Iterator[tuple[int, int]]:
    """(limit, used without page cache) in bytes, for every cgroup with a memory limit around the process `proc`."""
    for group, version in groups("memory", proc, cgroups):
        limit_file, usage_file, *keys = _FILES[version]
        limit, used = _number(kernel_text(group / limit_file)), _number(kernel_text(group / usage_file))
        if limit is None or used is None:
            continue
        counts = (line.partition(" ") for line in kernel_text(group / "memory.stat").splitlines())
        yield limit, max(used - sum(int(count) for key, _, count in counts if key in keys), 0)


def _number(text: str) -> int | None:
    """The number in a cgroup's file; None if the file is missing (as in the root group) or says `max`."""
    return int(text) if text.strip().isdecimal() else None
