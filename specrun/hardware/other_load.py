"""What other programs take of the processor's cores.

llama.cpp's threads wait for each other at every operation. Where there are more threads than free cores, all of them
wait for the one that the system has put aside (docs/tuning.md has figures).
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import psutil

_NAMED = 0.2  # of a core, from which a process is named


@dataclass(frozen=True)
class OtherLoad:
    """What others took while it was watched.

    cores: number of cores, hardware threads counted, that computed for other programs.
    n_cores: hardware threads that this process may run on. processes: name and number of those that took most.
    """

    cores: float
    n_cores: int
    processes: tuple[str, ...] = ()

    def threads_beside(self, wanted: int) -> int:
        """How many of the wanted threads have a core to themselves, at least one; half a busy core counts as one."""
        return max(1, min(wanted, int(self.n_cores - self.cores + 0.5)))


class LoadWatch:
    """Counts from when it is made. with_names: whether processes are looked at too, which takes longer."""

    def __init__(self, with_names: bool = False) -> None:
        self._with_names = with_names
        self._started = time.monotonic()
        self._own = _own_seconds()
        self._cores = _core_times()
        self._processes = _process_seconds() if with_names else {}

    @property
    def seconds(self) -> float:
        """How long it has been watching; under a quarter of a second says little, as ticks are 10 ms."""
        return time.monotonic() - self._started

    def so_far(self) -> OtherLoad:
        """What others took until now."""
        seconds = max(self.seconds, 1e-3)
        cores = sum(
            (taken - taken_before) / (total - total_before)
            for (taken, total), (taken_before, total_before) in zip(_core_times(), self._cores, strict=True)
            if total > total_before
        )
        others = cores - (_own_seconds() - self._own) / seconds
        processes = self._shares(seconds)
        # Some sandboxes do not count the time of cores.
        return OtherLoad(max(others, sum(processes.values()), 0.0), len(self._cores), _named(processes))

    def _shares(self, seconds: float) -> dict[tuple[int, str], float]:
        """Cores taken, by number and name of each process that took many."""
        if not self._with_names:
            return {}
        now = _process_seconds()
        shares = {one: (now[one] - self._processes[one]) / seconds for one in now.keys() & self._processes.keys()}
        return {one: share for one, share in shares.items() if share >= _NAMED}


def _named(shares: dict[tuple[int, str], float]) -> tuple[str, ...]:
    most = sorted(shares, key=lambda one: shares[one], reverse=True)[:3]
    return tuple(f"{name} ({number})" for number, name in most)


def allowed_cores() -> list[int]:
    """Hardware threads that this process may run on."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(psutil.cpu_count() or 1))


def _core_times() -> list[tuple[float, float]]:
    """Seconds of programs, and all seconds, of each allowed core since the machine started.

    What another guest of the same host takes counts as a program. The kernel's own work does not, because it may work
    for us: it decrypts what we read.
    """
    times = psutil.cpu_times(percpu=True)
    allowed = [times[core] for core in allowed_cores() if core < len(times)]
    programs = [sum(getattr(one, field, 0.0) for field in ("user", "nice", "steal")) for one in allowed]
    return [(taken, sum(one)) for taken, one in zip(programs, allowed, strict=True)]


def _own_seconds() -> float:
    return os.times().user


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
