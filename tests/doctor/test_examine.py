"""Memory, other load, folders, disk, hub and profiles: the real ones, and ones that are wrong."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import huggingface_hub.constants
import pytest

from specrun import kept_facts
from specrun.doctor import Finding, examine
from specrun.hardware import cpu
from specrun.hardware.cpu import LoadWatch, OtherLoad, usable_cores
from specrun.hardware.memory import Memory
from specrun.hardware.storage import Storage
from specrun.locations import data_dir
from specrun.profiles import profile_files
from tests.hub import Fault, Hub
from tests.profiles.test_profile import made

GB = 1_000_000_000
_Usage = namedtuple("_Usage", "total used free")


@pytest.fixture
def busy_core() -> Iterator[subprocess.Popen[bytes]]:
    """A process that computes for as long as the test runs."""
    # It looks now and then whether its parent is still there.
    loop = f"import os; print(flush=True)\nwhile os.getppid() == {os.getpid()}:\n    for _ in range(1_000_000): pass"
    process = subprocess.Popen([sys.executable, "-c", loop], stdout=subprocess.PIPE)
    assert process.stdout
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


def test_free_memory() -> None:
    assert examine.free(Memory(32 * GB, 20 * GB), 32 * GB).detail == "20.00 GB of 32.00 GB free"
    limited = examine.free(Memory(4 * GB, 3 * GB), 32 * GB)
    assert (limited.status, "as a cgroup allows of the machine's 32.00 GB" in limited.detail) == ("ok", True)
    assert examine.free(Memory(32 * GB, 3 * GB), 32 * GB).status == "warn"


def test_lockable_memory() -> None:
    assert examine.lockable(None, 20 * GB).status == "ok"
    assert examine.lockable(32 * GB, 20 * GB).status == "ok"
    low = examine.lockable(8_388_608, 20 * GB)
    assert (low.status, low.detail.partition(",")[0]) == ("warn", "8 MB")
    assert "ulimit -l unlimited" in low.fix


def test_a_quota_of_processor_time_is_told_with_its_threads() -> None:
    assert examine.cpu_quota(None, 4) == examine.cpu_quota(4.0, 4) == Finding("cpu quota", "ok", "none")
    said = {quota: examine.cpu_quota(quota, 4) for quota in (0.5, 1.5, 3.25)}
    assert [finding.status for finding in said.values()] == ["warn", "ok", "ok"]
    assert said[0.5].detail == (
        "0.5 of 4 cores, as a cgroup allows, so that 1 thread computes and stands still 50% of the time"
    )
    assert said[1.5].detail == "1.5 of 4 cores, as a cgroup allows, so that 1 thread computes"
    assert said[3.25].detail == "3.25 of 4 cores, as a cgroup allows, so that 3 threads compute"


def test_the_limit_is_the_systems_unless_this_process_stands_above_it(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, before[1]))
        (tmp_path / "status").write_text("Name:\tpython\nCapEff:\t0000000000000000\n")
        (tmp_path / "uid_map").write_text("         0          0 4294967295\n")
        assert examine.lock_limit(tmp_path) == 65536
        (tmp_path / "status").write_text("CapEff:\t000001fffeffffff\n")
        assert examine.lock_limit(tmp_path) is None
        (tmp_path / "uid_map").write_text("         0       1000          1\n")
        assert examine.lock_limit(tmp_path) == 65536, "capabilities inside a user namespace do not lift the limit"
        assert examine.lock_limit(tmp_path / "missing") == 65536
    finally:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, before)


@pytest.mark.slow
def test_a_busy_core_is_seen_and_named(busy_core: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    # Three are named, and others may compute as much: they are not looked at, and may leave it little.
    seconds = cpu._process_seconds
    monkeypatch.setattr(cpu, "_NAMED", 0.01)
    monkeypatch.setattr(
        cpu, "_process_seconds", lambda: {key: used for key, used in seconds().items() if key[0] == busy_core.pid}
    )
    load = examine.watched()
    assert load.cores > 0.4  # of one core, by whichever programs
    assert any(f"({busy_core.pid})" in process for process in load.processes), load


@pytest.mark.slow
def test_what_this_process_computes_is_no_other_load() -> None:
    watch = LoadWatch(with_names=True)
    while watch.seconds < 0.3:
        pass
    load = watch.so_far()
    assert not any(f"({os.getpid()})" in process for process in load.processes), load
    assert 0 <= load.cores <= load.n_cores


@pytest.mark.parametrize(
    ("busy", "n_cores", "wanted", "free"),
    [(0.0, 2, 2, 2), (0.4, 2, 2, 2), (0.6, 2, 2, 1), (1.0, 2, 2, 1), (2.0, 2, 2, 1), (1.0, 16, 8, 8), (9.0, 16, 8, 7)],
)
def test_threads_beside_others(busy: float, n_cores: int, wanted: int, free: int) -> None:
    load = OtherLoad(busy, n_cores, ("make (12)",))
    assert load.threads_beside(wanted) == free
    finding = examine.other_load(load, wanted)
    assert finding.status == ("ok" if free == wanted else "warn")
    assert (f"compute with {free} thread" in finding.fix) == (free < wanted)
    assert "make (12)" in finding.detail


def test_one_thread_on_one_busy_core() -> None:
    finding = examine.other_load(OtherLoad(1.0, 1), 1)
    assert (finding.status, finding.fix) == ("warn", "end them")
    assert examine.other_load(OtherLoad(0.0, 64), usable_cores()).status == "ok"
    assert usable_cores() <= 64


def test_folders_that_are_there_or_can_be_made_leave_nothing(tmp_path: Path) -> None:
    for folder in examine.folders():
        assert folder.path.is_relative_to(tmp_path)
        assert examine.writing(replace(folder, enough=0)).status == "ok"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("home", ["/proc/home", "FILE/home"])
def test_a_home_that_cannot_be_written(home: str, tmp_path: Path) -> None:
    """/proc takes no files from anyone; tests may run as root, whom no permissions keep out."""
    (tmp_path / "FILE").touch()
    path = tmp_path / home / ".local/share/specrun"  # an absolute `home` replaces what is before it
    finding = examine.writing(examine.Folder("data", path, 0, "SPECRUN_DATA_DIR"))
    assert (finding.check, finding.status) == ("data folder", "fail")
    assert str(path) in finding.detail
    assert finding.fix.startswith("SPECRUN_DATA_DIR=")


@pytest.mark.parametrize(("free", "status"), [(50 * GB, "ok"), (9 * GB, "warn"), (4096, "fail")])
def test_a_disk_that_is_full(free: int, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: _Usage(100 * GB, 100 * GB - free, free))
    finding = examine.writing(examine.Folder("models", tmp_path / "hub", 10 * GB, "HF_HOME"))
    assert finding.status == status
    assert bool(finding.fix) == (status != "ok")


def test_the_rate_of_the_disk_under_the_largest_model(tmp_path: Path) -> None:
    assert examine.largest_model() is None
    assert "no model is here" in examine.disk_rate(None).detail
    demo = tmp_path / "cache/demo"
    demo.mkdir(parents=True)
    (demo / "draft.gguf").write_bytes(bytes(10))
    (demo / "target.gguf").write_bytes(bytes(40 * 2**20))
    assert examine.largest_model() == demo / "target.gguf"
    assert "/s (" in examine.disk_rate(Storage.read(demo / "target.gguf")).detail
    assert examine.disk_rate(Storage("/dev/sda1", "ext4", 150e6)).status == "warn"
    assert examine.disk_rate(Storage("/dev/nvme0n1", "ext4", 3e9)).status == "ok"


def test_the_hub_answers(hub: Hub) -> None:
    finding = examine.hub()
    assert (finding.status, finding.detail) == ("ok", f"{hub.url} answers")
    assert [method for method, _, _ in hub.requests] == ["HEAD"]


def test_a_hub_that_has_a_problem(hub: Hub) -> None:
    hub.faults.append(Fault("/", status=503))
    finding = examine.hub()
    assert (finding.status, "answers 503" in finding.detail) == ("warn", True)


def test_a_hub_that_cannot_be_reached() -> None:
    """The one that `isolated` sets: a port of this machine where nobody listens."""
    finding = examine.hub()
    assert finding.status == "warn"
    assert "no connection to http://127.0.0.1:9" in finding.detail
    assert "curl -I http://127.0.0.1:9" in finding.fix


def test_an_address_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "nonsense")
    assert examine.hub().status == "warn"


def test_offline_mode_asks_nobody(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    finding = examine.hub()
    assert (finding.status, "HF_HUB_OFFLINE" in finding.detail) == ("ok", True)
    assert hub.requests == []


def test_profiles_that_fit_are_counted_and_stale_ones_named() -> None:
    now = {"llama.cpp": "1", "memory": 4}
    assert examine.facts_kept(now)[0].detail.startswith("none")
    profile_files.save(made("a"))
    assert examine.facts_kept(now)[0].detail == "1"
    before = {"files": ["t", "d"], "llama.cpp": "0", "memory": 2}
    old = made("b", target="old.gguf", folders=("llama-70b", ""), identity=before)
    profile_files.save(old)
    finding, _ = examine.facts_kept(now)
    assert finding.status == "warn"
    stale = "llama-70b/old.gguf with draft.gguf (llama.cpp, RAM changed since)"
    assert f"1 of 2 fit; not used any more: {stale}" in finding.detail


def test_all_kinds_of_facts_are_listed_and_what_cannot_be_read_is_named() -> None:
    path = profile_files.save(made("a"))
    kept_facts.write("facts", {"check": "cells"}, "")
    _, finding = examine.facts_kept({})
    assert (finding.status, finding.fix) == ("ok", "")
    assert finding.detail == f"in {data_dir()}: tuned profiles (1), checks of llama.cpp (1)"
    path.write_text(json.dumps({"version": 3}))
    _, finding = examine.facts_kept({})
    assert finding.status == "warn"
    assert str(path) in finding.detail
    assert finding.fix == f"rm '{path}'"
