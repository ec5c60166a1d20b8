"""The processor."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil

from specrun.hardware.memory import CGROUPS, PROC, groups, kernel_text

_CPUINFO = Path("/proc/cpuinfo")


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
