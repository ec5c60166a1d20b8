"""Models larger than the memory of a process, with some layers on the device: the text is that of llama.cpp's mapping.

The software device's memory is RAM, so the cap leaves room for what lies there, and for half of the rest.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.layer_states import n_bytes, weight_pages
from specrun.hardware.machine import Device
from specrun.llama.streaming.address_space import PAGE
from specrun.llama_settings import LlamaSettings
from tests.models import random_llama

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

SCRIPTS = Path(__file__).parents[2] / "scripts"
CAPPED = SCRIPTS / "capped.py"
N_LAYERS = 12
# Of a process beside weights, about: with what specrun leaves free, and with buffers of the device.
OWN_BYTES, OF_DEVICE = 214_000_000, 120_000_000


@pytest.fixture(autouse=True)
def shares_ram(gpu: Device) -> None:
    if not gpu.shares_ram:
        pytest.skip("the cap counts the device's memory where that is RAM only")


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dense") / "m.gguf"
    return random_llama(path, n_embd=1024, n_layer=N_LAYERS, n_head=16, n_head_kv=4, n_ff=12288)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mixture") / "m.gguf"
    shape = ["--layers", N_LAYERS, "--experts", 32, "--used", 4, "--embd", 512, "--ff", 512, "--independent"]
    subprocess.run([sys.executable, SCRIPTS / "make_mixture.py", path, *map(str, shape)], check=True, timeout=120)
    return path


def generate(target: Path, cap: int, n_layers: int, *options: str) -> tuple[str, str]:
    """What `specrun generate` writes with so many layers on the device, and what it says on stderr."""
    command = [sys.executable, str(CAPPED), str(cap), "--evict", str(target), "--", sys.executable, "-m", "specrun"]
    command += ["generate", "--target", str(target), "--speculate", "off", "--gpu-layers", str(n_layers), "-c", "128"]
    command += ["-n", "8", "--temp", "0", "--raw", "--no-learn", "--json", "--stats", *options, "It was"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=400)
    if run.returncode == 2 and "a memory cap needs" in run.stderr:
        pytest.skip(run.stderr.strip())
    assert run.returncode == 0, run.stderr
    return json.dumps(json.loads(run.stdout)["token_ids"]), run.stderr


@pytest.mark.parametrize(
    ("kind", "n_layers"),
    [
        *(("dense", n) for n in (0, N_LAYERS // 4, N_LAYERS // 2, N_LAYERS - 1)),
        # With all layers but one of a mixture there, this device takes more memory than the cap has.
        *(("mixture", n) for n in (0, N_LAYERS // 4, N_LAYERS // 2)),
    ],
)
def test_the_text_is_the_same(kind: str, n_layers: int, request: pytest.FixtureRequest) -> None:
    """With all layers but one in VRAM, what is left may fit, or be too little to take turns in slots."""
    target: Path = request.getfixturevalue(kind)
    file = GgufFile.read(target)
    pages = weight_pages(file, PAGE, settings=LlamaSettings(gpu_layers=n_layers)) if kind == "dense" else None
    rest = sum(pages.layer_bytes) + n_bytes(pages.others) if pages else file.n_bytes * (N_LAYERS - n_layers) // N_LAYERS
    cap = OWN_BYTES + (OF_DEVICE if n_layers else 0) + file.n_bytes - rest // 2
    text, log = generate(target, cap, n_layers)
    assert "streamed through" in log or "read when they are chosen" in log or n_layers == N_LAYERS - 1, log
    assert generate(target, cap, n_layers, "--residency", "off")[0] == text
