"""What passes cost, by their tokens, by the layers in VRAM, and by how the weights in RAM are held and copied.

Each combination has a process of its own, because llama.cpp reads once a process from how many tokens on it copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_bench.bench import Bench, Question
from specrun.catalog.gguf_file import GgufFile
from specrun.decoding import calibration_texts
from specrun.errors import LlamaError, SpecrunError
from specrun.llama import offload_threshold
from specrun.llama_settings import ALL_LAYERS, LlamaSettings
from specrun.loading.model import Model
from specrun.loading.run_options import RunOptions
from specrun.long_run import Run
from specrun.processes import child_process
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF
from specrun.tuning.pass_timer import TargetTimer, rounds

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # tokens of a pass
QUICK_SIZES = (1, 8, 32)
CONTEXT = 64  # tokens after which passes are timed
N_ROUNDS = 5  # at most; as many as there is time for, at least two
WARM_UP = 0.3  # share of a combination's time, after which larger passes are left out
THRESHOLDS = (None, 8, 32)  # tokens from which passes copy weights; None never
HELD = {"none": "pinned", "mmap": "pageable"}  # by load mode
CTX_SIZE = 1024


@dataclass(frozen=True)
class Case:
    """A combination. threshold: None never copies; without weights in RAM it decides nothing."""

    model: str
    layers: str  # in words
    n_layers: int  # in VRAM
    load_mode: str
    threshold: int | None = None
    n_cpu_moe: int | None = None
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def facts(self) -> dict[str, Any]:
        """What the row says beside the times. Only what decides something."""
        has_host_weights = self.n_cpu_moe is not None or self.layers not in ("none", "all")
        return {
            "model": self.model,
            "layers": self.layers,
            "n_layers": self.n_layers,
            "weights_in_ram": HELD[self.load_mode] if has_host_weights else None,
            "copied_from": self.threshold if has_host_weights else None,
            "is_split": has_host_weights,
            "environment": self.environment,
        }


def shares(n_units: int) -> dict[str, int]:
    """Layers in VRAM by their names. n_units: layers, the output counted as one."""
    return {"none": 0, "a quarter": n_units // 4, "half": n_units // 2, "all but one": n_units - 1, "all": n_units}


def quick_cases(n_units: int) -> list[Case]:
    """A few combinations."""
    half = n_units // 2
    split = [Case("dense", "half", half, "none", threshold) for threshold in (None, 8)]
    return [Case("dense", "none", 0, "mmap"), Case("dense", "all", n_units, "none"), *split]


def cases(n_units: int, has_mixture: bool, backend: str) -> list[Case]:
    """All combinations, in the order in which they are measured: the time may not suffice for all."""
    found = [Case("dense", "none", 0, "mmap"), Case("dense", "all", n_units, "none")]
    for name in ("half", "a quarter", "all but one"):
        n = shares(n_units)[name]
        found += [Case("dense", name, n, mode, threshold) for threshold in THRESHOLDS for mode in HELD]
    if has_mixture:
        in_ram = [("none", threshold) for threshold in THRESHOLDS] + [("mmap", None)]
        mixture = [Case("mixture", "all, experts in RAM", ALL_LAYERS, *held, n_cpu_moe=ALL_LAYERS) for held in in_ram]
        found += mixture
        if backend == "CUDA":
            first = mixture[0]
            graphs = {"GGML_CUDA_DISABLE_GRAPHS": "1"}
            found.append(Case(first.model, first.layers, ALL_LAYERS, first.load_mode, None, ALL_LAYERS, graphs))
    return found


def rows(bench: Bench) -> Iterator[dict[str, Any]]:
    """A row for each combination, with milliseconds by the tokens of a pass."""
    paths = {"dense": bench.models.dense, "mixture": None if bench.quick else bench.models.mixture}
    n_units = GgufFile.read(bench.models.dense).n_layers + 1
    every = quick_cases(n_units) if bench.quick else cases(n_units, paths["mixture"] is not None, bench.backend)
    questions = []
    for case in every:
        request = {
            "path": str(paths[case.model]), "n_layers": case.n_layers, "load_mode": case.load_mode,
            "threshold": case.threshold, "n_cpu_moe": case.n_cpu_moe, "sizes": QUICK_SIZES if bench.quick else SIZES,
        }  # fmt: skip
        what = f"{case.model}, layers in VRAM: {case.layers}"
        questions.append(Question("gpu_bench.passes", what, request, case.facts, case.environment))
    return bench.answers("passes", questions)


def serve(request: str) -> None:
    """Print the times for a request of `rows`, which is JSON."""
    child_process.reply(request, _timed, failures=SpecrunError)


def _timed(given: dict[str, Any]) -> dict[str, Any]:
    threshold = given["threshold"]
    settings = LlamaSettings(
        gpu_layers=given["n_layers"], n_cpu_moe=given["n_cpu_moe"], load_mode=given["load_mode"],
        op_offload=threshold is not None, offload_min_batch=threshold,
    )  # fmt: skip
    options = RunOptions(
        Path(given["path"]), None, (OFF.plan(),), SPECEXEC.plan(SIZES[-1], 8), CTX_SIZE, settings, residency="off"
    )
    with Model(options) as model:
        if threshold is not None and offload_threshold.in_use() != threshold:
            raise LlamaError(f"this build does not copy weights from {threshold} tokens on")
        tokens = model.llama_model.tokenize(calibration_texts.together(), add_special=False)
        timer = TargetTimer(model.engine.target, tokens)
        timer.fill(CONTEXT)
        run, warm_up = Run().stage(given["seconds"]), Run().stage(WARM_UP * given["seconds"])
        first: dict[int, float] = {}
        for n in given["sizes"]:  # the first pass of a size loads or compiles kernels, and none after it is like it
            first[n] = timer.ms(n)
            if warm_up.is_over():
                break
        times = rounds(timer, CONTEXT, list(first), N_ROUNDS, run).pass_times()
    return {
        "first": {str(n): round(ms, 4) for n, ms in first.items()},
        "ms": {str(time.n): round(time.ms, 4) for time in times},
        "rounds": min(time.samples for time in times),
    }
