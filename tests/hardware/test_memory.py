"""Memory limits of cgroups, on file trees as Linux shows them."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from specrun.hardware.memory import Memory, cgroup_limits

MiB = 2**20


class Tree:
    """A /proc/self and mounted cgroups under a folder."""

    def __init__(self, folder: Path, version: int, own: str, root: str = "/") -> None:
        self.proc = folder / "proc"
        self.mount = folder / "cgroup"
        self.version = version
        self.proc.mkdir()
        self.mount.mkdir()
        kind = "cgroup2 cgroup2 rw" if version == 2 else "cgroup cgroup rw,memory"
        (self.proc / "mountinfo").write_text(
            f"22 27 0:21 / /proc rw - proc proc rw\n31 23 0:28 {root} {self.mount} rw,relatime shared:1 - {kind}\n"
        )
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
    limits = [limit for limit in cgroup_limits(tree.proc) if limit[0] < 2**60]
    assert limits == [(700 * MiB, 200 * MiB)]
    memory = Memory.read(tree.proc)
    assert memory.total_bytes == 700 * MiB
    assert memory.available_bytes == 500 * MiB


def test_the_lowest_limit_counts(tmp_path: Path) -> None:
    tree = Tree(tmp_path, 2, "/a/b")
    tree.group("/a", str(200 * MiB), 190 * MiB).group("/a/b", str(100 * MiB), 20 * MiB)
    assert Memory.read(tree.proc) == Memory(100 * MiB, 10 * MiB)


def test_more_used_than_the_limit_leaves_nothing(tmp_path: Path) -> None:
    tree = Tree(tmp_path, 1, "/a").group("/a", str(100 * MiB), 120 * MiB)
    assert Memory.read(tree.proc).available_bytes == 0


def test_in_a_container_the_mount_shows_only_its_own_group(tmp_path: Path) -> None:
    inside = Tree(tmp_path, 2, "/docker/abc", root="/docker/abc").group("/", str(64 * MiB), MiB)
    assert Memory.read(inside.proc).total_bytes == 64 * MiB


def test_a_path_of_the_host_falls_back_to_the_mount(tmp_path: Path) -> None:
    tree = Tree(tmp_path, 1, "/docker/abc").group("/", str(64 * MiB), MiB)
    assert Memory.read(tree.proc) == Memory(64 * MiB, 63 * MiB)


def test_without_cgroups_it_is_the_machines(tmp_path: Path) -> None:
    memory = Memory.read(tmp_path)
    assert memory.total_bytes == psutil.virtual_memory().total
    assert 0 < memory.available_bytes <= memory.total_bytes


def test_this_machine() -> None:
    memory = Memory.read()
    assert 0 < memory.available_bytes <= memory.total_bytes <= psutil.virtual_memory().total
