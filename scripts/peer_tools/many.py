"""Many prompts at once with llama-server, whose slots share passes."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from peer_tools import build, running, tools
from peer_tools.tools import Job, Row
from specrun.hardware.cpu import usable_cores

SLOTS = 8


def answers(folder: Path, job: Job, prompts: Sequence[str]) -> tuple[float, list[dict[str, Any]]]:
    """Seconds from the start of the program to the last answer, and what it says of each.

    folder: where the program is, or is built. job: its context is that of one text. Raises PeerError or ToolError if
    the program cannot be built, or fails.
    """
    program = build.programs(folder, [tools.SERVER], usable_cores())
    job = replace(job, ctx_size=SLOTS * job.ctx_size)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as own:
        runner = running.Runner(program, job, Path(own))
        with runner.server(Row(tools.SERVER), SLOTS) as port, ThreadPoolExecutor(SLOTS) as clients:
            body = {"n_predict": job.max_tokens, "cache_prompt": False, "ignore_eos": True, "return_tokens": True}

            def ask(prompt: str) -> dict[str, Any]:
                found: dict[str, Any] = running.request(port, "/completion", body | {"prompt": prompt})
                return found

            found = list(clients.map(ask, prompts))
            return time.monotonic() - started, found


def main(given: str) -> None:
    """Print the answers as JSON. given: the job and the prompts as JSON, so that it can run under a memory cap."""
    value = json.loads(given)
    target, draft, extra = Path(value["target"]), Path(value["draft"]), tuple(value["options"])
    job = Job(target, draft, value["n"], 0.0, 0, usable_cores(), value["c"], True, extra)
    print(json.dumps(answers(Path(value["build_dir"]), job, value["prompts"])))
