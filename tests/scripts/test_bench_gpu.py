"""`scripts/bench_gpu` without a card: the page from a raw file, what a later run replaces, and the models it makes.

The whole of it runs in tests/gpu.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from specrun.catalog import embedded
from specrun.catalog.gguf_file import GgufFile
from specrun.errors import UsageError

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts"
MACHINE = {"cpu": "a CPU, 8 cores", "ram": "32 GiB", "cards": ["a card, 8 GiB"], "system": "Linux x86_64"}
PART = {
    "command": "scripts/bench_gpu --only {}", "date": "2026-01-02", "seconds": 12.3, "models": "made",
    "software": {"driver": "nvidia 550"}, "notes": [],
}  # fmt: skip
PASSES = [
    {"model": "dense", "layers": "none", "n_layers": 0, "weights_in_ram": None, "copied_from": None, "is_split": False,
     "environment": {}, "first": {"1": 62.5, "16": 250.0}, "ms": {"1": 50.0, "16": 240.0}, "rounds": 2},
    {"model": "dense", "layers": "half", "n_layers": 12, "weights_in_ram": "pinned", "copied_from": None,
     "is_split": True, "environment": {}, "ms": {"1": 25.04, "16": 1234.5}, "rounds": 2},
    {"model": "mixture", "layers": "all, experts in RAM", "n_layers": -1, "weights_in_ram": "pageable",
     "copied_from": 8, "is_split": True, "environment": {"GGML_CUDA_DISABLE_GRAPHS": "1"}, "ms": {"1": 3.0},
     "rounds": 2},
]  # fmt: skip
ROWS: dict[str, list[dict[str, Any]]] = {
    "passes": PASSES,
    "exactness": [{"flash": "on", "sms": 46, "boundary": 768, "exact": "4 tokens", "groups": [[1], [2, 3, 4]]}],
    "memory": [
        {"model": "dense", "layers": "half", "n_layers": 12, "ctx_size": 512, "planned_bytes": 90 << 20,
         "logged_bytes": 95 << 20, "missing_bytes": 100 << 20},
    ],
    "tune": [
        {"layers": "half", "kind": "choice", "quick": True, "plan": "chain, 4 nodes, 4 deep", "predicted": 20.0,
         "plain": 10.0, "settings": {"op_offload": False}},
        {"layers": "half", "kind": "measured", "row": "off", "plan": "off", "predicted": None, "measured": 10.5,
         "tokens_per_pass": 1.0},
        {"layers": "half", "kind": "measured", "row": "chain 4", "plan": "chain of 4", "predicted": 20.0,
         "measured": 21.0, "tokens_per_pass": 3.0},
    ],
    "peers": [
        {"layers": "half", "program": "llama.cpp", "row": "llama-completion", "plan": "off", "rate": 10.0,
         "tokens_per_pass": 1.0},
        {"layers": "half", "program": "specrun", "row": "tuned, auto", "plan": "auto", "rate": 25.0,
         "tokens_per_pass": 4.0},
    ],
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def importable() -> Iterator[None]:
    """The script's package can be imported."""
    sys.path.insert(0, str(SCRIPTS))
    yield
    sys.path.remove(str(SCRIPTS))


def module(name: str) -> ModuleType:
    return importlib.import_module(f"gpu_bench.{name}")


def part(name: str, **others: Any) -> dict[str, Any]:
    return {**PART, "command": PART["command"].format(name), **others}


def test_passes_are_timed_wherever_layers_lie() -> None:
    given = {"path": str(embedded.TARGET), "n_layers": 0, "load_mode": "mmap", "threshold": None, "n_cpu_moe": None}
    found = module("passes")._timed({**given, "sizes": [1, 4], "seconds": 0.2})
    assert found["first"].keys() == found["ms"].keys() == {"1", "4"}
    assert found["rounds"] >= 1


@pytest.fixture
def text() -> str:
    """The page of all parts."""
    parts = {name: part(name, notes=["no time for the rest"], rows=rows) for name, rows in ROWS.items()}
    return str(module("page").page({"machine": MACHINE, "parts": parts}))


@pytest.mark.parametrize(
    "line",
    [
        "# On a graphics card: a card, 8 GiB",
        "| model | layers in VRAM | weights in RAM | copied from | 1 | 16 |",
        "| dense | none (0) |  |  | 50.00 | 240.0 |",
        "| dense | none (0) | 62.50 | 250.0 |",
        "| dense | half (12) | pinned | never | 25.04 | 1,234 |",
        "| mixture GGML_CUDA_DISABLE_GRAPHS=1 | all, experts in RAM | pageable | passes of 8 | 3.00 |  |",
        "| on | 46 | 768 | 4 tokens | 2, 3, 4 |",
        "| dense | half | 512 | 90 | 95 | 100 | 0.90 |",
        "`specrun tune` (`--quick`) chose chain, 4 nodes, 4 deep; settings: op_offload False.",
        "| off | off |  | 10.50 | 1.00 |",
        "| specrun | tuned, auto | auto | 25.00 | 2.50 | 4.00 |",
    ],
)
def test_a_row_of_the_raw_file_is_a_row_of_the_page(line: str, text: str) -> None:
    assert line in text.splitlines()


def test_each_table_has_its_command_its_software_and_what_is_missing(text: str) -> None:
    for name in ROWS:
        assert f"scripts/bench_gpu --only {name}\n" in text
    assert text.count("- no time for the rest") == text.count("with driver nvidia 550.") == len(ROWS)


def test_the_fastest_plan_of_a_grid_comes_first(text: str) -> None:
    assert text.index("| chain 4 |") < text.index("| off | off |  |")


def test_a_page_of_one_part_has_one_table() -> None:
    text = module("page").page({"machine": MACHINE, "parts": {"memory": part("memory", rows=ROWS["memory"])}})
    assert text.count("## ") == 1


def test_a_later_run_replaces_its_own_parts_only(tmp_path: Path) -> None:
    path = tmp_path / "raw" / "gpu.json"
    first = module("record").Record(path, MACHINE)
    first.put("peers", part("peers"), ROWS["peers"])
    first.put("passes", part("passes"), ROWS["passes"][:1])
    later = module("record").Record(path, MACHINE)
    later.put("passes", part("passes"), ROWS["passes"])
    parts = json.loads(path.read_text())["parts"]
    assert list(parts) == ["passes", "peers"]
    assert parts["passes"]["rows"] == PASSES
    assert parts["peers"]["rows"] == ROWS["peers"]


def test_rows_of_two_machines_are_not_mixed(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    module("record").Record(path, MACHINE).put("peers", part("peers"), ROWS["peers"])
    with pytest.raises(UsageError, match=r"another machine \(a CPU, 8 cores, a card, 8 GiB\)"):
        module("record").Record(path, {**MACHINE, "cards": ["another card"]})


@pytest.mark.parametrize("content", ["[]", "{", '{"machine": {}, "parts": {"other": {}}}'])
def test_another_file_is_not_replaced(content: str, tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    path.write_text(content)
    with pytest.raises(UsageError, match="no raw file"):
        module("record").Record(path, MACHINE)
    assert path.read_text() == content


def test_passes_are_measured_in_all_combinations() -> None:
    every = module("passes").cases(25, True, "CUDA")
    split = [case for case in every if case.facts["is_split"] and case.model == "dense"]
    combinations = {(case.n_layers, case.load_mode, case.threshold) for case in split}
    assert combinations == {(n, mode, t) for n in (6, 12, 24) for mode in ("none", "mmap") for t in (None, 8, 32)}
    assert [case.n_layers for case in every if not case.facts["is_split"]] == [0, 25]
    assert sum(bool(case.environment) for case in every) == 1
    assert not any(case.environment for case in module("passes").cases(25, True, "Vulkan"))


def test_memory_is_counted_on_cards_only_and_without_trials() -> None:
    lines = [
        "~ CUDA0 model buffer size = 9000.00 MiB",
        "load_tensors:        CUDA0 model buffer size =   100.50 MiB",
        "load_tensors:   CPU_Mapped model buffer size =   700.00 MiB",
        "llama_kv_cache:      CUDA1 KV buffer size =     2.25 MiB",
        "sched_reserve:       CUDA0 compute buffer size = 3.25 MiB",
    ]
    assert module("memory").logged_bytes(lines, ["CUDA0", "CUDA1"]) == 106 << 20


@pytest.mark.parametrize(("n_parameters", "n_layers", "width"), [(7e9, 31, 4608), (1.1e9, 16, 2560), (1e6, 4, 512)])
def test_models_have_about_the_parameters_asked_for(n_parameters: float, n_layers: int, width: int) -> None:
    shape = module("models").Shape.of(n_parameters)
    assert (shape.n_layers, shape.width) == (n_layers, width)
    counted = n_layers * (2.5 * width**2 + 3 * width * shape.feed_forward)
    assert n_parameters < 1e9 or counted == pytest.approx(n_parameters, rel=0.05)


def test_random_models_compute_something(tmp_path: Path) -> None:
    from specrun.llama import LlamaModel, TargetContext
    from specrun.llama.context import ContextConfig, LlamaContext
    from specrun.llama_settings import LlamaSettings
    from specrun.speculation.tree import TokenTree

    models = module("models")
    models.write_random(tmp_path / "random.gguf", models.Shape(512, 512, 2))
    config = ContextConfig(64, n_seq_max=1, n_batch=8, n_outputs=8, settings=LlamaSettings(threads=1))
    with LlamaModel(tmp_path / "random.gguf") as model, LlamaContext(model, config) as context:
        target = TargetContext(context)
        target.set_prompt([1, 2, 3])
        rows = target.score(TokenTree.chain([3, 4])).copy()  # its memory goes with the context
    assert 0.1 < rows.std() < 10
    assert (rows[0] != rows[1]).any()


@pytest.mark.long
def test_the_pair_that_is_made_can_be_given_to_all_tools(tmp_path: Path) -> None:
    """llama.cpp's tools want one vocabulary."""
    pair = module("models").Models(tmp_path, 1e6).pair
    target, draft = (GgufFile.read(path) for path in (pair.target, pair.draft))
    assert target.n_layers == 8
    tokens = [file.metadata["tokenizer.ggml.tokens"] for file in (target, draft)]
    assert len(tokens[0]) == 32000
    assert list(tokens[0]) == list(tokens[1])


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--draft", __file__], "--draft needs a --target"),
        (["--target", __file__], "tune and peers need a --draft"),
        (["--target", "none.gguf", "--only", "passes"], "none.gguf: no such file"),
        (["--layers", "most"], "--layers is a list of half, fit and numbers"),
        (["--sms", "24,a"], "--sms is a list of numbers"),
        (["--minutes", "0"], "must be above 0"),
    ],
)
def test_wrong_options_end_with_a_line(options: list[str], said: str) -> None:
    environment = {"PYTHONPATH": f"{ROOT}:{SCRIPTS}", "PATH": ""}
    command = [sys.executable, "-m", "gpu_bench", *options]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == UsageError.exit_code
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
