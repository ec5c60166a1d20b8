"""specrun beside llama.cpp's own tools, on the same pair, prompts and layers in VRAM."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from peer_tools import build, tools

from gpu_bench.bench import SCRIPTS, Bench, PartError
from gpu_bench.tuned import KINDS, N_TOKENS, TEMPERATURE, profile_folder
from specrun.bench import shipped

LENGTHS, P_MIN = "2,4,8,16", "0,0.75"  # of llama.cpp's chains
QUICK_LENGTHS, QUICK_P_MIN = "3", "0"
# By backend. Compiling for other cards than this one would take most of the time.
_BUILD_OPTIONS = {
    "CUDA": "-DGGML_CUDA=on -DCMAKE_CUDA_ARCHITECTURES=native",
    "ROCm": "-DGGML_HIP=on",
    "Vulkan": "-DGGML_VULKAN=on",
}
_OF_LLAMA = 0.6  # share of a place's time


def rows(bench: Bench) -> Iterator[dict[str, Any]]:
    """For each number of layers in VRAM, rows of llama.cpp and of specrun: without a profile, with the one of `tune`,
    and what runs learn for the next. Rates are tokens/s after the prompt.
    """
    folder = bench.build_dir or build.default_folder().with_name(f"{build.installed_version()}-{bench.backend}")
    has_tools = _build(bench, folder)
    for i, layers in enumerate(bench.layers):
        began, seconds = time.perf_counter(), bench.share(len(bench.layers) - i)
        try:
            if has_tools:
                bench.run.show(f"peers: llama.cpp, layers in VRAM: {layers}")
                yield from _of_llama(bench, folder, layers, began + _OF_LLAMA * seconds)
        except PartError as error:
            bench.note(f"llama.cpp, layers in VRAM: {layers}: {error}")
        try:
            yield from _of_specrun(bench, layers, began + seconds)
        except PartError as error:
            bench.note(f"specrun, layers in VRAM: {layers}: {error}")


def _build(bench: Bench, folder: Path) -> bool:
    """Whether llama.cpp's tools are there, in the end. A build that is cut off goes on where it was the next time."""
    if all((folder / "build" / "bin" / name).is_file() for name in (tools.COMPLETION, tools.SPECULATIVE_SIMPLE)):
        return True
    bench.run.show(f"peers: building llama.cpp's tools in {folder}")
    arguments = os.environ.get("CMAKE_ARGS", "")
    if "GGML_" not in arguments:
        arguments = f"{arguments} {_BUILD_OPTIONS.get(bench.backend, '')}".strip()
    command = [SCRIPTS / "peers.py", "--tools", "speculative-simple", "--build-dir", folder, "--build-only"]
    try:
        bench.output(command, bench.run.deadline, CMAKE_ARGS=arguments)
    except PartError as error:
        bench.note(f"llama.cpp's tools could not be built, so there are rows of specrun only: {error}")
        return False
    return True


def _of_llama(bench: Bench, folder: Path, layers: str, deadline: float) -> Iterator[dict[str, Any]]:
    pair = bench.models.pair
    lengths, p_min = (QUICK_LENGTHS, QUICK_P_MIN) if bench.quick else (LENGTHS, P_MIN)
    command = [
        SCRIPTS / "peers.py", "--target", pair.target, "--draft", pair.draft, "--kinds", KINDS, "-o", "json",
        "--tools", "speculative-simple", "--depths", lengths, "--p-min", p_min, "--repeat", "1", "-n", N_TOKENS,
        "--temp", TEMPERATURE, "--ctx-size", "2048", "--build-dir", folder,
    ]  # fmt: skip
    option = bench.n_layers_option("--gpu-layers", layers)
    for found in json.loads(bench.output([*command, *(["--", *option] if option else [])], deadline)):
        yield {
            "layers": layers,
            "program": "llama.cpp",
            "row": found["tool"],
            "plan": found["settings"] or "off",
            "rate": found["tokens_per_second"],
            "tokens_per_pass": found["tokens_per_pass"],
        }


def _of_specrun(bench: Bench, layers: str, deadline: float) -> Iterator[dict[str, Any]]:
    tuned = profile_folder(bench.work, layers, bench.models.pair.target)
    with tempfile.TemporaryDirectory() as empty:
        folders = {"untuned": Path(empty)} | ({"tuned": tuned} if tuned.is_dir() else {})
        for name, data in folders.items():
            bench.run.show(f"peers: specrun {name}, layers in VRAM: {layers}")
            # Of a sweep over nothing but `auto`, which chooses no plans before.
            options = ["--kinds", KINDS, "--methods", "auto", "--sweep", "--repeat", "1", "-o", "json"]
            options += ["-n", str(N_TOKENS), "--temp", f"{TEMPERATURE:g}"]
            for found in bench.specrun(data, "bench", layers, *options, deadline=deadline):
                yield {
                    "layers": layers,
                    "program": "specrun",
                    "row": f"{name}, {found['method']}",
                    "plan": found["plan"],
                    "rate": found["tokens_per_second"],
                    "tokens_per_pass": found["tokens_per_pass"],
                }
        yield from _of_runs(bench, layers, Path(empty), deadline)


def _of_runs(bench: Bench, layers: str, data: Path, deadline: float) -> Iterator[dict[str, Any]]:
    """A first run, which learns while it writes, and a second, which begins with what was learned.

    data: the folder in which it is kept, empty before.
    """
    prompts = [prompt.text for prompt in shipped() if prompt.kind == KINDS]
    lines = "".join(json.dumps({"prompt": text}) + "\n" for text in prompts)
    options = ["--jsonl", "--parallel", "1", "-n", str(N_TOKENS), "--temp", f"{TEMPERATURE:g}"]
    for name in ("a first run", "a second run"):
        bench.run.show(f"peers: specrun, {name}, layers in VRAM: {layers}")
        said = bench.printed(data, "generate", layers, *options, deadline=deadline, given=lines)
        texts = [json.loads(line) for line in said.splitlines()]
        n_tokens = sum(text["completion_tokens"] for text in texts)
        yield {
            "layers": layers,
            "program": "specrun",
            "row": name,
            "plan": texts[-1]["plan"],
            "rate": n_tokens / sum(text["completion_tokens"] / text["tokens_per_second"] for text in texts),
            "tokens_per_pass": n_tokens / sum(text["passes"] for text in texts),
        }
