"""Quotas of processor time that the kernel gives to child processes: on Linux, and mostly for root only."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from specrun.hardware.memory import CGROUPS, PROC, groups

PERIOD_US = 100_000
LIMITS = {1: ("cpu.cfs_quota_us", "{quota}"), 2: ("cpu.max", f"{{quota}} {PERIOD_US}")}  # by the version of cgroups


@contextmanager
def cpu_quota(cores: float, n_below: int = 0) -> Iterator[Callable[[], None]]:
    """A group with a quota; yields what moves the calling process into a group so many levels below it.

    Raises OSError where no group can be made.
    """
    made: list[Path] = []
    try:
        made.append(_limited(cores))
        for _ in range(n_below):
            made.append(made[-1] / "below")
            made[-1].mkdir()
        members = made[-1] / "cgroup.procs"
        yield lambda: members.write_text(str(os.getpid())) and None
    finally:
        for path in reversed(made):
            path.rmdir()


def _limited(cores: float) -> Path:
    """A new group with a quota, below this process's own or below one above that."""
    for parent, version in groups("cpu", PROC, CGROUPS):
        name, text = LIMITS[version]
        group = parent / f"specrun-quota-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        if (group / name).exists():
            (group / name).write_text(text.format(quota=int(cores * PERIOD_US)))
            return group
        group.rmdir()
    raise OSError("no group with a quota can be made")
