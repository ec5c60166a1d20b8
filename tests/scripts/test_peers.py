"""The comparison with llama.cpp's own tools: their output read back, and the whole script over tools that we fake.

Compiling the real tools takes minutes; SPECRUN_PEERS may name a --build-dir that holds them, for a run with those.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import gguf
import numpy as np
import pytest

from tests.models import write_model

SCRIPTS = Path(__file__).parents[2] / "scripts"

pytestmark = pytest.mark.long

# What the tools of llama-cpp-python 0.3.36 print, shortened.
COMPLETION = """
0.00.527.393 I generate: n_ctx = 1024, n_batch = 2048, n_predict = 49, n_keep = 0
0.00.527.393 I
.parse_args(argv)
    return parser.parse_args(argv)

0.01.565.449 I common_perf_print:    sampling time =       1.11 ms
0.01.565.471 I common_perf_print:    samplers time =       0.72 ms /    65 tokens
0.01.569.425 I common_perf_print:        load time =     147.09 ms
0.01.569.447 I common_perf_print: prompt eval time =     124.23 ms /    16 tokens
0.01.569.461 I common_perf_print:        eval time =      43.34 ms /    48 runs
0.01.569.474 I common_perf_print:       total time =    1042.25 ms /    64 tokens
"""
SPECULATIVE_SIMPLE = """
0.02.017.875 I encoded   16 tokens in    0.085 seconds, speed:  187.763 t/s
0.02.017.894 I decoded   50 tokens in    1.209 seconds, speed:   41.343 t/s
0.02.017.907 I
0.02.017.920 I n_draft   = 4
0.02.017.932 I n_predict = 50
0.02.017.945 I n_drafted = 64
0.02.017.958 I n_accept  = 33
0.02.017.970 I accept    = 51.562%
"""
SPECULATIVE = """
0.00.120.734 I encoded   16 tokens in    0.005 seconds, speed: 3452.741 t/s
0.00.120.751 I decoded   50 tokens in    0.082 seconds, speed:  609.399 t/s
0.00.120.763 I
0.00.120.775 I n_draft   = 8
0.00.120.787 I n_predict = 50
0.00.120.799 I n_drafted = 120
0.00.120.811 I n_accept  = 34
0.00.120.824 I accept    = 28.333%
"""
LOOKUP = """
0.01.014.984 I encoded   16 tokens in    0.022 seconds, speed: 3187.509 t/s
0.01.015.002 I decoded   53 tokens in    0.694 seconds, speed:   76.346 t/s
0.01.015.015 I
0.01.015.028 I n_draft      = 4
0.01.015.040 I n_predict    = 53
0.01.015.053 I n_drafted    = 32
0.01.015.066 I t_draft_flat = 0.02 ms
0.01.015.079 I t_draft      = 0.28 ms, 8.88 us per token, 112676.06 tokens per second
0.01.015.092 I n_accept     = 20
0.01.015.105 I accept       = 62.500%
"""
SERVER: dict[str, Any] = {
    "cache_n": 0,
    "prompt_n": 16,
    "prompt_ms": 5.311,
    "predicted_n": 49,
    "predicted_ms": 67.698,
    "predicted_per_token_ms": 1.410375,
    "predicted_per_second": 709.0312860054951,
    "draft_n": 63,
    "draft_n_accepted": 32,
}


@pytest.fixture(scope="module", autouse=True)
def importable() -> Iterator[None]:
    """The script's package can be imported."""
    sys.path.insert(0, str(SCRIPTS))
    yield
    sys.path.remove(str(SCRIPTS))


@pytest.fixture(scope="module")
def parsing() -> ModuleType:
    return importlib.import_module("peer_tools.parsing")


@pytest.fixture(scope="module")
def errors() -> ModuleType:
    return importlib.import_module("peer_tools.errors")


def test_plain_decoding_is_timed_by_the_clock_of_its_log(parsing: ModuleType) -> None:
    measured = parsing.completion(COMPLETION)
    assert (measured.tokens, measured.passes) == (48, 48)
    assert measured.seconds == pytest.approx(1.565449 - 0.527393 - 0.12423)


def test_the_first_pass_of_speculative_simple_counts(parsing: ModuleType) -> None:
    measured = parsing.speculative_simple(SPECULATIVE_SIMPLE)
    assert (measured.tokens, measured.passes) == (50, 17)
    assert measured.rate == pytest.approx(41.343)


@pytest.mark.parametrize(
    ("output", "tokens", "passes", "seconds"), [(SPECULATIVE, 49, 15, 0.082), (LOOKUP, 52, 32, 0.694)]
)
def test_the_token_from_the_prompts_pass_does_not_count(
    parsing: ModuleType, output: str, tokens: int, passes: int, seconds: float
) -> None:
    measured = parsing.speculative(output)
    assert (measured.tokens, measured.passes) == (tokens, passes)
    assert measured.seconds == pytest.approx(seconds, abs=5e-4)


def test_server_timings(parsing: ModuleType) -> None:
    measured = parsing.server(SERVER)
    assert measured.rate == pytest.approx(SERVER["predicted_per_second"])
    assert (measured.tokens, measured.passes) == (48, 16)


def test_text_that_looks_like_timings_is_not_taken_for_them(parsing: ModuleType) -> None:
    written = "decoded    9 tokens in    9.000 seconds, speed:    1.000 t/s\nn_accept  = 7\n"
    assert parsing.speculative_simple(written + SPECULATIVE_SIMPLE) == parsing.speculative_simple(SPECULATIVE_SIMPLE)


@pytest.mark.parametrize(
    ("output", "part"),
    [
        ("loading\nerror: failed to open x.gguf\nbye\n", "error: failed to open x.gguf"),
        ("", "no output"),
        ("decoded    1 tokens in    0.000 seconds, speed:    1.0 t/s\nn_accept  = 0\n", "nothing that can be timed"),
    ],
)
def test_output_without_usable_timings(parsing: ModuleType, errors: ModuleType, output: str, part: str) -> None:
    with pytest.raises(errors.ToolError, match=part):
        parsing.speculative(output)


def test_a_tool_whose_passes_fail_is_not_taken_for_a_fast_one(parsing: ModuleType, errors: ModuleType) -> None:
    with pytest.raises(errors.ToolError, match=r"1 passes that failed \(decode: failed to initialize batch\)"):
        parsing.speculative("0.00.044.236 E decode: failed to initialize batch\n" + SPECULATIVE)


# Prints what the real tool of its name printed, and writes down how it was called.
FAKE_TOOL = """#!{python}
import json, os, sys
from pathlib import Path
here, name = Path(__file__).parent, Path(__file__).name
prompt = Path(sys.argv[sys.argv.index("--binary-file") + 1]).read_text()
leaks = [key for key in os.environ if key.startswith("LLAMA_ARG")]
with open(here / "calls", "a") as log:
    log.write(json.dumps([name, sys.argv[1:], prompt, leaks]) + "\\n")
if "fail" in sys.argv or "16" in sys.argv:
    sys.exit("error: this setting is not for me")
print((here / (name + ".txt")).read_text())
"""

FAKE_SERVER = """#!{python}
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

class Handler(BaseHTTPRequestHandler):
    def answer(self, value):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(value).encode())
    def do_GET(self):
        self.answer({{"status": "ok"}})
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with open(Path(__file__).parent / "calls", "a") as log:
            log.write(json.dumps(["llama-server", sys.argv[1:], body["prompt"], []]) + "\\n")
        self.answer({{"timings": json.loads({timings!r})}})

if "ngram-mod" in sys.argv:
    sys.exit("error: this setting is not for me")
HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


class Peers:
    """The script over fake tools in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "build" / "bin"
        self.bin.mkdir(parents=True)
        (folder / "target.gguf").touch()
        write_model(folder / "draft.gguf", "llama", {}, {}, gguf.GGMLQuantizationType.F32)
        outputs = {"completion": COMPLETION, "speculative-simple": SPECULATIVE_SIMPLE,
                   "speculative": SPECULATIVE, "lookup": LOOKUP}  # fmt: skip
        for name, output in outputs.items():
            (self.bin / f"llama-{name}.txt").write_text(output)
            self._program(f"llama-{name}", FAKE_TOOL.format(python=sys.executable))
        self._program("llama-server", FAKE_SERVER.format(python=sys.executable, timings=json.dumps(SERVER)))
        (folder / "prompts.jsonl").write_text(
            json.dumps({"prompt": PROMPT}) + '\n{"prompt": "two"}\n{"prompt": "three"}\n'
        )

    def _program(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def __call__(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        given = {"--target": "target.gguf", "--draft": "draft.gguf", "--prompts": "prompts.jsonl", "--build-dir": "."}
        fixed = [part for option, value in given.items() for part in (option, str(self.folder / value))]
        command = [sys.executable, str(SCRIPTS / "peers.py"), *fixed, *arguments]
        return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=120)

    def calls(self) -> list[tuple[str, list[str], str, list[str]]]:
        """Tool, arguments, prompt and stray environment variables of every call."""
        return [tuple(json.loads(line)) for line in (self.bin / "calls").read_text().splitlines()]


PROMPT = 'print("one\\n")\n\n'


@pytest.fixture
def peers(tmp_path: Path) -> Peers:
    if sys.platform == "win32":
        pytest.skip("the fake tools are scripts that need a shebang")
    return Peers(tmp_path)


def test_rows_of_the_result(peers: Peers) -> None:
    result = peers("--quick", "-o", "json", "--max-tokens", "48", "--temp", "0.5")
    assert result.returncode == 0, result
    rows = json.loads(result.stdout)
    names = {"completion", "speculative-simple", "speculative", "lookup", "server"}
    assert {row["tool"] for row in rows} == {f"llama-{name}" for name in names}
    for row in rows:
        low, high = row["tokens_per_second_spread"]
        assert low <= row["tokens_per_second"] <= high
        assert row["tokens_per_pass"] >= 1
        assert (row["kind"], row["prompts"], row["max_tokens"], row["temperature"]) == ("peer", 2, 48, 0.5)
        assert row["repack"] is True
    assert rows[0]["ratio"] == 1
    for tool in {row["tool"] for row in rows}:
        assert sum(row["best"] for row in rows if row["tool"] == tool) == 1
    assert "ngram-mod" in result.stderr
    assert "left out" in result.stderr


def test_the_table_has_a_line_per_row(peers: Peers) -> None:
    result = peers("--quick", "--tools", "lookup")
    lines = result.stdout.splitlines()
    assert len(lines) == 1 + 1 + 2
    assert lines[1].startswith("*  llama-completion")


def test_prompts_arrive_as_they_are_and_the_users_settings_do_not(peers: Peers) -> None:
    arguments = [
        "--quick",
        "--tools",
        "lookup,server,speculative",
        "--max-tokens",
        "48",
        "--no-repack",
        "--threads",
        "3",
    ]
    result = peers(*arguments, "--", "--gpu-layers", "7", LLAMA_ARG_THREADS="9", http_proxy="http://127.0.0.1:9")
    assert result.returncode == 0, result
    asked = {"llama-completion": 49, "llama-lookup": 48, "llama-speculative": 48}
    for tool, options, prompt, leaks in peers.calls():
        given = " ".join(options)
        assert prompt in (PROMPT, "two")
        assert not leaks
        for part in ("--no-repack", "--gpu-layers 7", "--threads 3 ", "--ignore-eos", "--temp 0.0", "--top-k 40"):
            assert part in given
        if tool in asked:
            assert f"--no-escape --predict {asked[tool]}" in given
        assert ("--model-draft" in given) == (tool == "llama-speculative" or "draft-simple" in given)


@pytest.mark.parametrize(
    ("architecture", "tensor", "kind"),
    [
        ("eagle3", "fc.weight", "draft-eagle3"),
        ("dflash", "fc.weight", "draft-dflash"),
        ("gemma4-assistant", "output_norm.weight", "draft-mtp"),
        ("dflash", "markov_w1.weight", "draft-dspark"),
    ],
)
def test_a_head_drafts_for_the_tools_that_know_its_kind(
    peers: Peers, architecture: str, tensor: str, kind: str
) -> None:
    tensors = {tensor: np.zeros((2, 32), np.float32)}
    write_model(peers.folder / "draft.gguf", architecture, {}, tensors, gguf.GGMLQuantizationType.F32)
    result = peers("--quick", "--tools", "speculative-simple,speculative,server")
    assert result.returncode == 0, result
    drafting = {
        (tool, options[options.index("--spec-type") + 1])
        for tool, options, _, _ in peers.calls()
        if "--model-draft" in options
    }
    assert drafting == {("llama-speculative-simple", kind), ("llama-server", kind)}


def test_repetitions_are_outermost(peers: Peers) -> None:
    result = peers("--tools", "lookup", "--repeat", "2", "-o", "json")
    assert {row["repetitions"] for row in json.loads(result.stdout)} == {2}
    order = [(tool, options[options.index("--spec-draft-n-max") + 1] if "--spec-draft-n-max" in options else "")
             for tool, options, prompt, _ in peers.calls() if prompt == PROMPT]  # fmt: skip
    depths = ["2", "3", "4", "6", "8", "12", "16", "32"]
    first = [("llama-completion", ""), *(("llama-lookup", depth) for depth in depths)]
    assert order == [("llama-completion", ""), *first, *(row for row in first if row[1] != "16")]


def test_plain_decoding_that_fails_ends_it(peers: Peers) -> None:
    result = peers("--quick", "--", "fail")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "peers.py: llama-completion ended with exit code 1: error: this setting is not for me\n"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--tools", "lookup,magic"], "--tools is a list of llama-speculative-simple"),
        (["--tools", ","], "--tools is a list of"),
        (["--target", "no-such-file"], "--target must name a GGUF file; got no-such-file"),
        (["--prompts", "no-such-file"], "no-such-file cannot be read"),
        (["--max-tokens", "1"], "--max-tokens must be 2 or more"),
        (["--repeat", "0"], "--repeat"),
    ],
)
def test_usage_errors(peers: Peers, arguments: list[str], part: str) -> None:
    result = peers(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert part in result.stderr
    assert result.stderr.count("\n") == 1


def test_without_cmake_it_says_so(peers: Peers) -> None:
    (peers.bin / "llama-lookup").unlink()
    result = peers("--quick", "--tools", "lookup", PATH="")
    assert (result.returncode, result.stdout) == (2, "")
    assert "needs cmake; install it" in result.stderr


def test_medians_ratios_and_the_best_setting(parsing: ModuleType, tmp_path: Path) -> None:
    script, tools = importlib.import_module("peers"), importlib.import_module("peer_tools.tools")
    slow, fast = tools.Row("llama-lookup", ("a",)), tools.Row("llama-lookup", ("b",))

    def of(*rates: float) -> list[Any]:
        return [parsing.Measured(10, 10 / rate, 5) for rate in rates]

    job = tools.Job(tmp_path, tmp_path, 10, 0.0, 0, 1, 256, True)
    results = {tools.PLAIN: of(10, 20, 40), slow: of(11, 22, 20), fast: of(30, 30, 30)}
    plain, first, second = script.as_objects(results, job, 1)
    assert (plain["tokens_per_second"], plain["tokens_per_second_spread"], plain["ratio"]) == (20, [10, 40], 1)
    assert (first["tokens_per_second"], first["ratio"], first["best"]) == (20, 1.1, False)
    assert (second["tokens_per_second"], second["ratio"], second["best"]) == (30, 1.5, True)
    assert second["tokens_per_pass"] == 2


@pytest.mark.skipif("SPECRUN_PEERS" not in os.environ, reason="SPECRUN_PEERS names no folder with the real tools")
@pytest.mark.parametrize("temperature", ["0", "0.8"])
def test_the_real_tools_on_the_embedded_pair(demo_target: Path, demo_draft: Path, temperature: str) -> None:
    command = [sys.executable, str(SCRIPTS / "peers.py"), "--target", str(demo_target), "--draft", str(demo_draft)]
    command += [
        "--build-dir",
        os.environ["SPECRUN_PEERS"],
        "--quick",
        "-n",
        "32",
        "--threads",
        "1",
        "-o",
        "json",
        "--temp",
        temperature,
    ]
    result = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert result.returncode == 0, result
    rows = json.loads(result.stdout)
    assert len({row["tool"] for row in rows}) == 5
    assert all(row["tokens"] >= 2 * 32 for row in rows)
