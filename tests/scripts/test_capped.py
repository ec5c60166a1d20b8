"""The memory cap: what is read again under it, what it reports, and that nothing of it remains."""

from __future__ import annotations

import importlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.waiting import wait_until

SCRIPTS = Path(__file__).parents[2] / "scripts"
MIB = 2**20
READ_TWICE = (
    "import sys\nfor _ in range(2):\n    with open(sys.argv[1], 'rb') as f:\n        while f.read(1 << 20): pass"
)

# Runs what comes after --; asked for the limit of its scope, says SIZE.
FAKE_SYSTEMD_RUN = """#!/bin/sh
for a; do shift; [ "$a" = -- ] && break; done
case "$1 $3" in "sh "*memory.max*) echo SIZE; exit;; esac
exec "$@"
"""


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    """The script as a module."""
    sys.path.insert(0, str(SCRIPTS))
    yield importlib.import_module("capped")
    sys.path.remove(str(SCRIPTS))


@pytest.fixture
def kept_signals() -> Iterator[None]:
    """For tests that call main() in this process: its signal handlers are taken back."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, str(SCRIPTS / "capped.py"), *map(str, arguments)]


def capped(*arguments: str | Path, path: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ if path is None else {**os.environ, "PATH": path}
    return subprocess.run(command(*arguments), capture_output=True, text=True, env=environment, timeout=120)


@pytest.fixture(scope="module")
def works() -> None:
    """Skips where this machine gives us no way to cap memory."""
    result = capped("100M", "--", "true")
    if result.returncode == 2 and "a memory cap needs" in result.stderr:
        pytest.skip(result.stderr.strip())


@pytest.fixture
def big_file(script: ModuleType, tmp_path: Path) -> Path:
    """64 MiB on storage, of which nothing is in the page cache."""
    path = tmp_path / "big"
    path.write_bytes(os.urandom(64 * MIB))
    script.evict(path)
    if script.resident_bytes(path):
        pytest.skip("files in the temporary folder cannot be evicted: it is in memory")
    return path


def bytes_read(result: subprocess.CompletedProcess[str]) -> int:
    match = re.search(r"read (\d+) bytes", result.stderr)
    assert match, result
    return int(match[1])


@pytest.mark.long
@pytest.mark.usefixtures("works")
def test_a_file_larger_than_the_cap_is_read_again_every_time(big_file: Path) -> None:
    result = capped("40M", "--evict", big_file, "--", sys.executable, "-c", READ_TWICE, big_file)
    assert result.returncode == 0, result
    assert bytes_read(result) > 110 * MIB
    assert "of 40.0 MiB" in result.stderr


@pytest.mark.long
@pytest.mark.usefixtures("works")
def test_a_file_that_fits_is_read_once_and_not_at_all_if_it_was_cached_before(big_file: Path) -> None:
    once = capped("400M", "--evict", big_file, "--", sys.executable, "-c", READ_TWICE, big_file)
    assert 64 * MIB <= bytes_read(once) < 100 * MIB, once
    cached = capped("400M", "--", sys.executable, "-c", READ_TWICE, big_file)
    assert bytes_read(cached) < 32 * MIB, cached


@pytest.mark.long
def test_evicting_leaves_nothing_resident(script: ModuleType, big_file: Path) -> None:
    big_file.read_bytes()
    assert script.resident_bytes(big_file) == 64 * MIB
    script.evict(big_file)
    assert script.resident_bytes(big_file) == 0


@pytest.mark.slow
def test_pages_that_another_process_maps_stay_and_are_reported(
    script: ModuleType, big_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import mmap

    with big_file.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
        assert sum(mapping[i] for i in range(0, 64 * MIB, mmap.PAGESIZE))
        script.evict(big_file)
    assert "stay in the page cache" in capsys.readouterr().err


@pytest.mark.usefixtures("works")
@pytest.mark.parametrize(("program", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143)])
def test_the_exit_code_is_the_commands(program: str, code: int) -> None:
    assert capped("100M", "--", "sh", "-c", program).returncode == code


@pytest.mark.usefixtures("works")
def test_stdout_is_the_commands_alone() -> None:
    result = capped("100M", "--", "echo", "hello")
    assert result.stdout == "hello\n"
    assert result.stderr.startswith("capped.py: read ")
    assert result.stderr.count("\n") == 1


@pytest.mark.usefixtures("works")
def test_a_command_that_needs_more_memory_is_killed_and_the_reason_told() -> None:
    result = capped("40M", "--", sys.executable, "-c", "x = bytearray(200_000_000)")
    assert result.returncode == 137, result
    if "systemd" not in result.stderr:
        assert "KILLED for lack of memory" in result.stderr


@pytest.mark.usefixtures("works")
def test_a_command_that_does_not_exist() -> None:
    result = capped("100M", "--", "no-such-command")
    assert (result.returncode, result.stderr) == (127, "capped.py: no-such-command: command not found\n")


@pytest.mark.usefixtures("works")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_it_ends_with_its_command_and_removes_its_group(number: signal.Signals, code: int) -> None:
    program = "import os, time; print(open('/proc/self/cgroup').read(), flush=True); os.spawnlp(os.P_NOWAIT, 'sleep',"
    program += " 'sleep', '60'); print('ready', flush=True); time.sleep(60)"
    process = subprocess.Popen(
        command("100M", "--", sys.executable, "-c", program),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout
    groups = ""
    for line in process.stdout:
        if line == "ready\n":
            break
        groups += line
    match = re.search(r"^\d+:(?:memory|):(/.*specrun-capped-\d+)$", groups, re.MULTILINE)
    # As a terminal does, to the whole foreground group; SIGTERM as kill does, to the one process.
    os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == code
    if match:
        folders = [Path(f"{root}{match[1]}") for root in ("/sys/fs/cgroup", "/sys/fs/cgroup/memory")]
        wait_until(lambda: not any(folder.exists() for folder in folders), "the removal of the group", timeout=10)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["3X", "--", "true"], "'3X' is not a size"),
        (["0", "--", "true"], "'0' is not a size"),
        (["100M", "--evict", "no-such-file", "--", "true"], "no-such-file cannot be evicted: No such file"),
        (["100M", "true"], "unrecognized arguments"),
        (["100M"], "give a command after --"),
    ],
)
def test_usage_errors(arguments: list[str], part: str) -> None:
    result = capped(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert part in result.stderr


@pytest.mark.parametrize(
    ("text", "size"), [("300M", 300 * MIB), ("1.5g", 1536 * MIB), ("2GiB", 2048 * MIB), ("8192", 8192), ("10kb", 8192)]
)
def test_sizes_are_whole_pages(script: ModuleType, text: str, size: int) -> None:
    assert script.parse_size(text) == size


@pytest.mark.usefixtures("kept_signals")
def test_without_a_cgroup_or_systemd_it_says_what_it_needs(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(script, "candidate_parents", lambda: iter(()))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "argv", ["capped.py", "100M", "--", sys.executable])
    assert script.main() == 2
    error = capsys.readouterr().err
    assert error.startswith("capped.py: a memory cap needs Linux and one of: root")
    assert error.count("\n") == 1


@pytest.mark.usefixtures("kept_signals")
@pytest.mark.parametrize(("enforced", "code"), [(True, 5), (False, 2)])
def test_systemd_is_used_only_if_it_really_caps(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, enforced: bool, code: int
) -> None:
    fake = tmp_path / "systemd-run"
    fake.write_text(FAKE_SYSTEMD_RUN.replace("SIZE", str(100 * MIB) if enforced else "max"))
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(script, "candidate_parents", lambda: iter(()))
    monkeypatch.setattr(sys, "argv", ["capped.py", "100M", "--", "sh", "-c", "exit 5"])
    assert script.main() == code
