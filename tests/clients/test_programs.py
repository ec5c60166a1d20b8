"""Programs that people use ask the server. `scripts/client_programs.py` makes their environment, and runs this."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from specrun.catalog import embedded
from specrun.decoding.generation import Request
from specrun.sampling import SamplingParameters
from specrun.serving.request_fields import Defaults
from specrun.speculation.method import OFF
from tests.models import CHAT_TEMPLATE, edited, scripted_llama
from tests.serving.running import running
from tests.serving.templates import QWEN3
from tests.serving.test_tools import CALL_PIECES, END_PIECES

PROGRAMS = Path(__file__).parent / "programs"
TIMEOUT_S = 300

# What a prompt ends with says which script is answered: of a request without tools, and after a tool's result.
GREETS, TELLS = b"\x01", b"\x02"
SCRIPTED = QWEN3.rstrip().removesuffix("{%- endif %}") + (
    "{%- if messages[-1].role == 'tool' %}{{- '\x02' }}{%- elif not tools %}{{- '\x01' }}{%- endif %}{%- endif %}"
)


@pytest.fixture(scope="session")
def environment() -> Path:
    """The folder of the programs' environment, with `python` and `node_modules`."""
    folder = os.environ.get("SPECRUN_CLIENTS")
    if folder is None:
        pytest.skip("scripts/client_programs.py makes the environment of these programs")
    return Path(folder)


def defaults(temperature: float) -> Defaults:
    return Defaults(Request(sampling=SamplingParameters(temperature=temperature), max_tokens=600), seed=1)


@pytest.fixture(scope="session")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Two servers: one says what a script has, the other whatever a grammar allows.

    The first greets; with tools it calls one, and then tells the result.
    """
    folder = tmp_path_factory.mktemp("models")
    others = [[GREETS, b"<think>", b"hm", b"</think>", b"\n\nHello ", b"there."], [TELLS, b"It ", b"rains."]]
    pieces = [b"I look.\n", *CALL_PIECES, *END_PIECES]
    script = scripted_llama(folder / "s.gguf", pieces, others=others, metadata={CHAT_TEMPLATE: SCRIPTED})
    pair = edited(folder / "pair.gguf", embedded.TARGET, {CHAT_TEMPLATE: QWEN3})
    with (
        running(script, plan=OFF.plan(), ctx_size=4096, parallel=4, defaults=defaults(0)) as scripted,
        running(pair, ctx_size=4096, defaults=defaults(0.8)) as free,
    ):
        yield [scripted.url, free.url]


@pytest.mark.clients
@pytest.mark.slow
@pytest.mark.parametrize("program", sorted(path.name for path in PROGRAMS.glob("with_*")))
def test_a_program_gets_on_with_the_server(environment: Path, addresses: list[str], program: str) -> None:
    command = [str(environment / "bin" / "python"), str(PROGRAMS / program)]
    if program.endswith(".mjs"):
        if shutil.which("node") is None or not (environment / "node_modules").is_dir():
            pytest.skip("node is not there")
        command = ["node", str(PROGRAMS / program)]
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": str(environment),
        "SPECRUN_CLIENTS": str(environment),
        "OPENAI_API_KEY": "none",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
    }
    done = subprocess.run(
        [*command, *addresses], env=variables, cwd=environment, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert not any(told.values()), "\n".join(f"{name}: {why}" for name, why in told.items() if why)
