"""What the Linux kernel says in files: their texts, and the control groups (cgroups) whose limits a process has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

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
