"""How much of the processor's cores other programs use.

llama.cpp's threads wait for each other at every operation. Where there are more threads than free cores, all threads
wait for a thread that the system has suspended (docs/tuning.md has figures).
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import psutil

from specrun.hardware.cpu import allowed_cores

_NAMED = 0.2  # cores; a process that uses fewer is not named


@dataclass(frozen=True)
class OtherLoad:
    """What other programs used while they were watched."""

    cores: float  # cores (hardware threads) that computed for other programs
    n_cores: int  # hardware threads that this process may run on
    processes: tuple[str, ...] = ()  # name and number of the programs that used most

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
