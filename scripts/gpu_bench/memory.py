"""The memory that placement plans on the devices, what llama.cpp's log says it takes there, and what devices miss."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from gpu_bench.bench import Bench, Question
from gpu_bench.passes import shares
from specrun.catalog.gguf_file import GgufFile
from specrun.decoding import calibration_texts
from specrun.errors import SpecrunError
from specrun.hardware.machine import offload_devices
from specrun.llama import devices, library
from specrun.llama_settings import ALL_LAYERS, LlamaSettings
from specrun.loading.model import Model
from specrun.loading.run_options import RunOptions
from specrun.processes import child_process
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF
from specrun.tuning.pass_timer import TargetTimer

CTX_SIZES = (512, 4096)
LARGEST = 64  # tokens of the pass that is made before memory is read
_MIB = 2**20


def rows(bench: Bench) -> Iterator[dict[str, Any]]:
    """A row for each share of the layers in VRAM and each length of the context, in bytes."""
    dense, mixture = bench.models.dense, None if bench.quick else bench.models.mixture
    n_units = GgufFile.read(dense).n_layers + 1
    some = {
        name: n
        for name, n in shares(n_units).items()
        if name in (("half",) if bench.quick else ("a quarter", "half", "all"))
    }
    every = [("dense", dense, name, n, None, ctx) for name, n in some.items() for ctx in CTX_SIZES]
    if mixture:
        every.append(("mixture", mixture, "all, experts in RAM", ALL_LAYERS, ALL_LAYERS, CTX_SIZES[0]))
    questions = []
    for model, path, name, n, n_cpu_moe, ctx in every:
        request = {"path": str(path), "n_layers": n, "n_cpu_moe": n_cpu_moe, "ctx_size": ctx}
        facts = {"model": model, "layers": name, "n_layers": n, "ctx_size": ctx}
        what = f"{model}, layers in VRAM: {name}, {ctx} tokens"
        questions.append(Question("gpu_bench.memory", what, request, facts))
    return bench.answers("memory", questions)


def serve(request: str) -> None:
    """Print the bytes for a request of `rows`, which is JSON."""
    child_process.reply(request, _taken, failures=SpecrunError)


def _taken(given: dict[str, Any]) -> dict[str, Any]:
    settings = LlamaSettings(gpu_layers=given["n_layers"], n_cpu_moe=given["n_cpu_moe"])
    largest = SPECEXEC.plan(LARGEST, 8)
    options = RunOptions(Path(given["path"]), None, (OFF.plan(),), largest, given["ctx_size"], settings)
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    library.logger.setLevel(logging.DEBUG)
    library.logger.addHandler(handler)
    before = offload_devices(devices.devices())
    with Model(options) as model:
        tokens = model.llama_model.tokenize(calibration_texts.together(), add_special=False)
        timer = TargetTimer(model.engine.target, tokens)
        timer.fill(LARGEST)
        timer.ms(LARGEST)
        after = offload_devices(devices.devices())
        assert model.placement, "there is a device"
        planned = model.placement.vram_bytes
    free = [sum(device.free_bytes for device in found) for found in (before, after)]
    logged = logged_bytes(lines, [device.name for device in before])
    return {"planned_bytes": planned, "logged_bytes": logged, "missing_bytes": free[0] - free[1]}


def logged_bytes(lines: Iterable[str], names: Sequence[str]) -> int:
    """The bytes of all buffers that llama.cpp's log tells of on these devices."""
    # Lines of trials that llama.cpp makes before begin with ~.
    text = "\n".join(line for line in lines if not line.startswith("~"))
    found = re.findall(rf"(?:{'|'.join(map(re.escape, names))}) \w+ buffer size\s*=\s*([\d.]+) MiB", text)
    return int(sum(map(float, found)) * _MIB)
