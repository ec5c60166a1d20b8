"""`specrun serve` as a process: its ready line, a taken port, keys, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from specrun.errors import ModelFileError, UsageError
from tests.conftest import ENDING_SIGNALS, Specrun, SpecrunHere
from tests.waiting import TIMEOUT_S

COMPLETIONS = "/v1/completions"


def ready(process: subprocess.Popen[bytes]) -> tuple[str, str]:
    """The URL in the ready line, and what stderr said before."""
    assert process.stderr
    before = ""
    while line := process.stderr.readline().decode():
        if found := re.search(r"listens on (http://\S+);", line):
            return found[1], before
        before += line
    raise AssertionError(f"no ready line: {before}")


def end(process: subprocess.Popen[bytes]) -> None:
    """End the server, and read its pipes to their end."""
    process.terminate()
    process.communicate(timeout=TIMEOUT_S)


def test_it_answers_and_writes_nothing_to_stdout(specrun: Specrun, script: Path) -> None:
    process = specrun.start(
        "serve", "-m", script, "--speculate", "off", "--port", "0", "--alias", "mine", "--temp", "0"
    )
    url, before = ready(process)
    assert url.startswith("http://127.0.0.1:")
    assert f"chat: {url}\n" in before
    assert httpx2.get(f"{url}/health", trust_env=False).json() == {"status": "ok"}
    body = {"messages": [{"role": "user", "content": "hi"}]}
    answer = httpx2.post(f"{url}/v1/chat/completions", json=body, trust_env=False, timeout=TIMEOUT_S).json()
    assert answer["model"] == "mine"
    assert answer["choices"][0]["message"]["content"] == "one two é end"
    assert answer["choices"][0]["finish_reason"] == "stop"
    process.send_signal(signal.SIGTERM)
    stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, stdout, stderr) == (128 + signal.SIGTERM, b"", b"")


@pytest.mark.parametrize("number", ENDING_SIGNALS)
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
def test_a_signal_ends_streams_with_a_reason(specrun: Specrun, endless: Path, number: signal.Signals) -> None:
    process = specrun.start("serve", "-m", endless, "--speculate", "off", "--port", "0", "-c", "16000")
    url, _ = ready(process)
    body = {"prompt": "la ", "stream": True}
    with httpx2.stream("POST", url + COMPLETIONS, json=body, trust_env=False, timeout=TIMEOUT_S) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data: {")
        process.send_signal(number)
        data = [line[6:] for line in lines if line]
    assert data[-1] == "[DONE]"
    assert json.loads(data[-2])["choices"][0]["finish_reason"] == "length"
    assert process.communicate(timeout=TIMEOUT_S) == (b"", b"")
    assert process.returncode == 128 + number


def test_a_taken_port_is_said_before_a_model_is_looked_for(specrun: Specrun) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = specrun("serve", "-m", "missing.gguf", "--port", port)
    result.assert_fails(UsageError.exit_code, port, "taken", "--port")


def test_an_address_of_another_machine_is_refused(specrun: Specrun) -> None:
    specrun("serve", "--host", "192.0.2.1", "--port", "0").assert_fails(UsageError.exit_code, "192.0.2.1", "address")


@pytest.mark.parametrize("host", ["a..b", "x" * 70, os.fsdecode(b"a\xff")])
def test_what_is_no_name_of_a_machine_is_refused(here: SpecrunHere, script: Path, host: str) -> None:
    here("serve", "--host", host, "--port", "0").assert_fails(UsageError.exit_code, "--host", "no name of a machine")
    rpc = here("generate", "x", "-m", script, "--rpc", f"{host}:50052")
    rpc.assert_fails(UsageError.exit_code, "--rpc must be a list of servers")


def test_a_model_that_cannot_be_loaded_ends_the_server(specrun: Specrun, tmp_path: Path) -> None:
    result = specrun("serve", "-m", tmp_path / "missing.gguf", "--port", "0")
    result.assert_fails(ModelFileError.exit_code, "missing.gguf")


def test_it_warns_where_anybody_may_ask(specrun: Specrun, script: Path) -> None:
    process = specrun.start("serve", "-m", script, "--speculate", "off", "--host", "0.0.0.0", "--port", "0")
    url, before = ready(process)
    warning, chat = before.splitlines()
    assert "--api-key" in warning
    assert re.fullmatch(rf"chat: http://(?!0\.0\.0\.0)\S+:{url.split(':')[-1]}", chat)  # which a browser can open
    assert httpx2.get(url.replace("0.0.0.0", "127.0.0.1") + "/v1/models", trust_env=False).status_code == 200
    end(process)


def test_the_key_may_come_from_the_environment(specrun: Specrun, script: Path) -> None:
    arguments = ("serve", "-m", script, "--speculate", "off", "--host", "0.0.0.0", "--port", "0")
    process = specrun.start(*arguments, SPECRUN_API_KEY="secret")
    url, before = ready(process)
    assert before.startswith("chat: ")
    assert before.count("\n") == 1
    models = url.replace("0.0.0.0", "127.0.0.1") + "/v1/models"
    assert httpx2.get(models, trust_env=False).status_code == 401
    assert httpx2.get(models, headers={"Authorization": "Bearer secret"}, trust_env=False).status_code == 200
    end(process)
