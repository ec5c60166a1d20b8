"""Memory limits of cgroups, on file trees as Linux shows them; when memory counts as short."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from specrun.hardware.memory import Memory, Pressure, cgroup_limits, margin_bytes

MiB = 2**20


class Tree:
    """A /proc/self and mounted cgroups under a folder."""

    def __init__(self, folder: Path, version: int, own: str) -> None:
        self.proc = folder / "proc"
        self.cgroups = folder / "cgroup"
        self.mount = self.cgroups if version == 2 else self.cgroups / "memory"
        self.version = version
        self.proc.mkdir()
        self.mount.mkdir(parents=True)
        (self.proc / "cgroup").write_text(f"0::{own}\n" if version == 2 else f"9:cpu:/x\n4:memory:{own}\n0::/\n")

    def group(self, path: str, limit: str, used: int, files: int = 0) -> Tree:
        """Make a cgroup with this limit and usage in bytes; `files` bytes of the usage are page cache."""
        folder = self.mount / path.lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        names = ("memory.max", "memory.current", "") if self.version == 2 else (
            "memory.limit_in_bytes", "memory.usage_in_bytes", "total_")  # fmt: skip
        (folder / names[0]).write_text(f"{limit}\n")
        (folder / names[1]).write_text(f"{used}\n")
        stat = f"{names[2]}inactive_file {files - files // 4}\n{names[2]}active_file {files // 4}\nshmem 99\n"
        (folder / "memory.stat").write_text(stat)
        return self


@pytest.mark.parametrize("version", [1, 2])
def test_all_groups_above_count(tmp_path: Path, version: int) -> None:
    tree = Tree(tmp_path, version, "/job/step")
    tree.group("/job", str(700 * MiB), 300 * MiB, 100 * MiB)
    tree.group("/job/step", "max" if version == 2 else "9223372036854771712", 50 * MiB)
    limits = [limit for limit in cgroup_limits(tree.proc, tree.cgroups) if limit[0] < 2**60]
    assert limits == [(700 * MiB, 200 * MiB)]
    memory = Memory.read(tree.proc, tree.cgroups)
    assert memory.total_bytes == 700 * MiB
    assert memory.available_bytes == 500 * MiB


def test_the_lowest_limit_counts(tmp_path: Path) -> None:
    tree = Tree(tmp_path, 2, "/a/b")
    tree.group("/a", str(200 * MiB), 190 * MiB).group("/a/b", str(100 * MiB), 20 * MiB)
    assert Memory.read(tree.proc, tree.cgroups) == Memory(100 * MiB, 10 * MiB)


def test_more_used_than_the_limit_leaves_nothing(tmp_path: Path) -> None:
    tree = Tree(tmp_path, 1, "/a").group("/a", str(100 * MiB), 120 * MiB)
    assert Memory.read(tree.proc, tree.cgroups).available_bytes == 0


def test_in_a_container_the_mount_shows_only_its_own_group(tmp_path: Path) -> None:
    inside = Tree(tmp_path, 2, "/docker/abc").group("/", str(64 * MiB), MiB)
    assert Memory.read(inside.proc, inside.cgroups).total_bytes == 64 * MiB


def test_a_path_of_the_host_falls_back_to_the_mount(tmp_path: Path) -> None:
    tree = Tree(tmp_path, 1, "/docker/abc").group("/", str(64 * MiB), MiB)
    assert Memory.read(tree.proc, tree.cgroups) == Memory(64 * MiB, 63 * MiB)


def test_without_cgroups_it_is_the_machines(tmp_path: Path) -> None:
    memory = Memory.read(tmp_path, tmp_path)
    assert memory.total_bytes == psutil.virtual_memory().total
    assert 0 < memory.available_bytes <= memory.total_bytes


def test_this_machine() -> None:
    memory = Memory.read()
    assert 0 < memory.available_bytes <= memory.total_bytes <= psutil.virtual_memory().total


class Machine:
    """Memory that is free, a clock, and how often somebody looked."""

    def __init__(self) -> None:
        self.now, self.free, self.n_looks = 0.0, 100, 0
        self.pressure = Pressure(100, self._look, lambda: self.now)

    def _look(self) -> int:
        self.n_looks += 1
        return self.free

    def after(self, seconds: float, free: int) -> int:
        self.now += seconds
        self.free = free
        return self.pressure.shortage()


def test_what_is_missing_of_the_margin_is_to_be_given_back() -> None:
    machine = Machine()
    assert machine.after(2, 100) == 0
    assert machine.after(2, 50) == 0, "half of the margin is enough"
    assert machine.after(2, 49) == 51
    assert machine.after(2, 0) == 100
    assert machine.after(2, 200) == 0


def test_it_looks_at_most_four_times_a_second() -> None:
    machine = Machine()
    assert [machine.after(1 / 16, 0) for _ in range(9)] == [0, 0, 0, 100, 0, 0, 0, 100, 0]
    assert machine.n_looks == 2


def test_the_margin_is_that_of_the_plan_made_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    free = [8 * 10**9]
    monkeypatch.setattr(Memory, "read", lambda: Memory(10**10, free[0]))
    monkeypatch.setattr("specrun.hardware.memory._INTERVAL", 0.0)
    pressure = Pressure.watch(8 * 10**9)
    assert pressure.shortage() == 0
    free[0] = 10**8
    assert pressure.shortage() == margin_bytes(8 * 10**9) - 10**8
