"""The processor, and how much of its cores other programs use.

llama.cpp's threads wait for each other at every operation. Where there are more threads than free cores, all threads
wait for a thread that the system has suspended (docs/tuning.md has figures).
"""

from __future__ import annotations

import os
import platform
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from specrun.hardware.memory import CGROUPS, PROC, groups, kernel_text

_CPUINFO = Path("/proc/cpuinfo")
_NAMED = 0.2  # cores; a process that uses fewer is not named
SECONDS_OF_A_LOOK = 0.5  # at what other programs do, before anything of our own runs


@dataclass(frozen=True)
class Cpu:
    """The processor of this machine."""

    name: str
    n_physical: int  # cores
    n_logical: int  # hardware threads
    n_usable: int  # threads that have a core each, see `usable_cores`
    features: tuple[str, ...]  # instruction sets that llama.cpp uses, see `cpu_features`
    quota: float | None = None  # of cgroups, see `read_quota`

    @classmethod
    def read(cls, system_info: str) -> Cpu:
        """Read this machine's processor. system_info: the text of `llama_print_system_info`."""
        n_logical = psutil.cpu_count() or 1
        n_physical = psutil.cpu_count(logical=False) or n_logical
        return cls(_name(), n_physical, n_logical, usable_cores(), cpu_features(system_info), read_quota())


def usable_cores() -> int:
    """Number of threads that have a physical core each, of those that this process may run on and within its quota.

    llama.cpp is usually fastest with as many. Its threads wait for each other, so with more than the quota has, all
    stand still whenever it is used up.
    """
    allowed = len(allowed_cores())
    return _within_quota(min(psutil.cpu_count(logical=False) or allowed, allowed))


def usable_threads() -> int:
    """Number of hardware threads that this process may run on, within its quota; a core may have two."""
    return _within_quota(len(allowed_cores()))


def _within_quota(n: int) -> int:
    return max(1, min(n, int(read_quota() or n)))


def read_quota(proc: Path = PROC, cgroups: Path = CGROUPS) -> float | None:
    """How many cores' time cgroups leave this process, e.g. 1.5; None without such a limit. A container's number of
    CPUs is one, and so is CPUQuota= of systemd. proc, cgroups: as of `groups`.
    """
    quotas = [_quota(group, version) for group, version in groups("cpu", proc, cgroups)]
    return min((quota for quota in quotas if quota), default=None)


def _quota(group: Path, version: int) -> float | None:
    """The quota of one group, in cores; None if it sets none."""
    names = ("cpu.max",) if version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    numbers = " ".join(kernel_text(group / name) for name in names).split()  # the time and its period, in microseconds
    if len(numbers) != 2 or not all(map(str.isdecimal, numbers)) or not int(numbers[1]):  # `max`, -1, or no such file
        return None
    return int(numbers[0]) / int(numbers[1])


def allowed_cores() -> list[int]:
    """Hardware threads that this process may run on."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(psutil.cpu_count() or 1))


def cpu_features(system_info: str) -> tuple[str, ...]:
    """What llama.cpp's CPU backend uses, e.g. `("AVX2", "FMA")` of `CUDA : X = 1 | CPU : AVX2 = 1 | FMA = 1 | `."""
    features, backend = [], ""
    for part in system_info.split("|"):
        before, _, rest = part.rpartition(" : ")
        backend = before.strip() or backend
        name, _, value = (text.strip() for text in rest.partition("="))
        if backend == "CPU" and name and value != "0":
            features.append(name if value == "1" else f"{name}={value}")
    return tuple(features)


def read_flags() -> frozenset[str]:
    """The instruction sets of this machine's processor, in Linux's names; empty where the system does not list them."""
    return frozenset(_value(kernel_text(_CPUINFO), "flags", "Features").split())  # x86, ARM


def cpuinfo_name(cpuinfo: str) -> str:
    """The processor's name in the text of /proc/cpuinfo; empty if it has none, as on most ARM boards."""
    return _value(cpuinfo, "model name", "Model", "cpu model")


def _name() -> str:
    if platform.system() == "Darwin":
        command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        name = subprocess.run(command, capture_output=True, encoding="utf-8", check=False).stdout.strip()
    else:
        name = cpuinfo_name(kernel_text(_CPUINFO))
    return name or platform.processor() or platform.machine() or "unknown"


def _value(cpuinfo: str, *keys: str) -> str:
    """The value of the first line with any of these keys, with single blanks; empty if no line has such a key."""
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in keys:
            return " ".join(value.split())
    return ""


@dataclass(frozen=True)
class OtherLoad:
    """What other programs used while they were watched."""

    cores: float  # cores (hardware threads) that computed for other programs
    n_cores: int  # hardware threads that this process may run on
    processes: tuple[str, ...] = ()  # name and number of the programs that used most

    def __str__(self) -> str:
        """For people: a clause that can begin a sentence."""
        by = f" ({', '.join(self.processes)})" if self.processes else ""
        return f"other programs hold {self.cores:.1f} of {self.n_cores} cores{by}"

    def threads_beside(self, wanted: int) -> int:
        """How many of the wanted threads have a core to themselves, at least 1. Busy cores are rounded."""
        return max(1, min(wanted, int(self.n_cores - self.cores + 0.5)))


class LoadWatch:
    """Counts from its creation on. with_names: whether to look at single processes too, which takes longer."""

    def __init__(self, with_names: bool = False) -> None:
        self._with_names = with_names
        self._started = time.monotonic()
        self._own = _own_seconds()
        self._cores = _core_times()
        self._processes = _process_seconds() if with_names else {}

    @property
    def seconds(self) -> float:
        """Seconds since the start. Less than a quarter of a second says little, as ticks are 10 ms."""
        return time.monotonic() - self._started

    def after(self, seconds: float = SECONDS_OF_A_LOOK) -> OtherLoad:
        """What other programs have used in at least so many seconds, of which those that are left are waited for."""
        time.sleep(max(seconds - self.seconds, 0.0))
        return self.so_far()

    def so_far(self) -> OtherLoad:
        """What other programs have used until now."""
        seconds = max(self.seconds, 1e-3)
        cores = sum(
            (taken - taken_before) / (total - total_before)
            for (taken, total), (taken_before, total_before) in zip(_core_times(), self._cores, strict=True)
            if total > total_before
        )
        others = cores - (_own_seconds() - self._own) / seconds
        now = _process_seconds() if self._with_names else {}
        used = {key: (now[key] - self._processes[key]) / seconds for key in now.keys() & self._processes.keys()}
        shares = {key: share for key, share in used.items() if share >= _NAMED}
        most = sorted(shares, key=lambda process: shares[process], reverse=True)[:3]
        names = tuple(f"{name} ({number})" for number, name in most)
        # Some sandboxes do not count the time of cores.
        return OtherLoad(max(others, sum(shares.values()), 0.0), len(self._cores), names)


def _own_seconds() -> float:
    """Processor time of this process and of its children that have ended, such as a first pass on a GPU."""
    times = os.times()
    return times.user + times.children_user


def _core_times() -> list[tuple[float, float]]:
    """For each allowed core the seconds spent in programs, and all seconds, since the machine started.

    Time taken by another guest of the same host counts as a program. The kernel's own time does not, because the kernel
    may work for this process: it decrypts what is read.
    """
    times = psutil.cpu_times(percpu=True)
    allowed = [times[core] for core in allowed_cores() if core < len(times)]
    return [(sum(getattr(core, field, 0.0) for field in ("user", "nice", "steal")), sum(core)) for core in allowed]


def _process_seconds() -> dict[tuple[int, str], float]:
    """Processor time of every other program on the allowed cores, by number and name."""
    allowed = set(allowed_cores())
    seconds = {}
    for process in psutil.process_iter():
        try:
            with process.oneshot():
                core = process.cpu_num() if hasattr(process, "cpu_num") else -1
                times = process.cpu_times()
                if process.pid != os.getpid() and (core in allowed or core < 0):
                    seconds[process.pid, process.name()] = times.user
        except psutil.Error:  # it has ended, or is not to be looked at
            continue
    return seconds
