"""SIGTERM and SIGHUP end a command as Ctrl-C does: what was written stays, and the exit code names the signal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.conftest import Specrun, SpecrunHere
from tests.waiting import TIMEOUT_S, wait_until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")

SIGNALS = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])


@SIGNALS
def test_the_text_so_far_is_kept(specrun: Specrun, endless: Path, number: signal.Signals) -> None:
    process = specrun.start("generate", "x", "-m", endless, "-c", "16000", "--speculate", "off")
    assert process.stdout
    first = process.stdout.read(3)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, stderr) == (128 + number, b"")
    assert (first + stdout).decode().endswith(" \n")


def test_an_object_is_written_whole(specrun: Specrun, endless: Path) -> None:
    process = specrun.start("generate", "x", "-m", endless, "-c", "16000", "--speculate", "off", "--json")
    loaded = psutil.Process(process.pid)
    wait_until(lambda: loaded.cpu_times().user > 3, "passes that write the answer")
    process.send_signal(signal.SIGTERM)
    stdout, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 128 + signal.SIGTERM
    assert json.loads(stdout)["finish_reason"] == "interrupted"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("command", [("generate", "--jsonl"), ("chat",)])
def test_waiting_for_a_line_ends(
    specrun: Specrun, script: Path, command: tuple[str, ...], number: signal.Signals
) -> None:
    process = specrun.start(*command, "-m", script, "--speculate", "off", stdin=subprocess.PIPE)
    assert process.stdin
    assert process.stdout
    process.stdin.write(b'{"prompt": "x"}\n')
    process.stdin.flush()
    assert process.stdout.readline()
    wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_SLEEPING, "a process that waits")
    process.send_signal(number)
    assert process.wait(TIMEOUT_S) == 128 + number
    assert b"Traceback" not in process.communicate()[1]


@pytest.mark.slow
def test_a_command_that_nohup_started_goes_on(script: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = subprocess.Popen(
            [*Specrun.command("chat"), "-m", str(script), "--speculate", "off"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ,
        )
    finally:
        signal.signal(signal.SIGHUP, before)
    assert process.stdin
    assert process.stdout
    process.stdin.write(b"x\n")
    process.stdin.flush()
    assert process.stdout.readline()
    process.send_signal(signal.SIGHUP)
    process.communicate(b"y\n", timeout=TIMEOUT_S)
    assert process.returncode == 0


@pytest.mark.parametrize(("error", "code"), [("MemoryError()", 6), ("ImportError('failed to map')", 1)])
def test_python_that_cannot_go_on_is_one_line(error: str, code: int) -> None:
    program = f"""
import sys
class Failing:
    def find_spec(self, name, path, target=None):
        if name == "typer":
            raise {error}
sys.meta_path.insert(0, Failing())
from specrun.cli import main
main()
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr.count("\n")) == (code, "", 1), run
    assert "memory" in run.stderr


def test_a_terminal_that_is_gone_is_no_traceback(here: SpecrunHere, monkeypatch: pytest.MonkeyPatch) -> None:
    from specrun.views import output

    def gone(_: str) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(output, "error", gone)
    monkeypatch.setattr("specrun.cli.app._abandon", lambda _: None)
    assert here("generate", "x", "-m", "nothing.gguf").code == 3
