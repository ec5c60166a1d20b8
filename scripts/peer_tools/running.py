"""Runs a row over all prompts."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

from peer_tools import parsing, tools
from peer_tools.errors import PeerError, ToolError
from peer_tools.parsing import Measured
from peer_tools.tools import Job, Row

SYSTEM_CONFIG = Path("/etc/llama.cpp/config.ini")


class Runner:
    """Calls the tools, each with the job's options and nothing of the user's own llama.cpp settings."""

    def __init__(self, programs: dict[str, Path], job: Job, folder: Path) -> None:
        self._programs = programs
        self._job = job
        self._folder = folder
        if SYSTEM_CONFIG.exists():
            raise PeerError(f"{SYSTEM_CONFIG} would change the options of llama.cpp's tools; move it away")
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("LLAMA_")}
        self._environment["XDG_CONFIG_HOME"] = str(folder)

    def run(self, row: Row, prompts: Sequence[str]) -> Measured:
        """The row on all prompts. Raises ToolError if the tool fails."""
        one_by_one = self._serve(row, prompts) if row.tool == tools.SERVER else self._call(row, prompts)
        return reduce(add, one_by_one)

    def server(self, row: Row, slots: int = 1) -> AbstractContextManager[int]:
        """A llama-server of the row on a free port, which it yields once the model is loaded. slots: requests at once,
        which share the context.
        """
        return _server(self._programs[row.tool], tools.options(row, self._job), self._environment, slots)

    def _call(self, row: Row, prompts: Sequence[str]) -> Iterator[Measured]:
        for prompt in prompts:
            file = self._folder / "prompt.txt"
            file.write_bytes(prompt.encode())
            command = tools.one_shot_command(self._programs[row.tool], row, self._job, file)
            run = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=self._environment,
            )
            output = run.stdout.decode(errors="replace")
            if run.returncode:
                raise ToolError(f"ended with exit code {run.returncode}: {parsing.last_words(output)}")
            yield tools.PARSERS[row.tool](output)

    def _serve(self, row: Row, prompts: Sequence[str]) -> Iterator[Measured]:
        with self.server(row) as port:
            for prompt in prompts:
                body = {
                    "prompt": prompt,
                    "n_predict": self._job.max_tokens + tools.EXTRA_TOKENS[tools.SERVER],
                    "cache_prompt": False,
                    "ignore_eos": True,
                }
                yield parsing.server(request(port, "/completion", body)["timings"])


@contextlib.contextmanager
def _server(program: Path, options: list[str], environment: dict[str, str], slots: int) -> Iterator[int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    command = [
        str(program),
        *options,
        "--parallel",
        str(slots),
        "--cache-ram",
        "0",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment
        )
        try:
            while True:
                if process.poll() is not None:
                    raise ToolError(f"did not start, exit code {process.returncode}: {_last_words(log)}")
                with contextlib.suppress(OSError):
                    request(port, "/health")
                    break
                time.sleep(0.1)
            yield port
        except (OSError, KeyError, ValueError) as error:
            raise ToolError(f"did not answer ({error}): {_last_words(log)}") from error
        finally:
            process.terminate()
            process.wait()


def _last_words(log: Any) -> str:
    log.seek(0)
    return parsing.last_words(log.read().decode(errors="replace"))


def request(port: int, path: str, body: dict[str, Any] | None = None) -> Any:
    """The JSON that the server answers. Raises OSError if it does not."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"})
    # Without a handler of its own, urllib would go through the proxy that the environment names.
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as response:
        return json.load(response)
