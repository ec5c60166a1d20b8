"""Tiled kernels in no pass, in all, or from another size on than llama.cpp's own.

In no pass or in all, a token's logits are the same bits in passes of every size. Which of them it is, is settled once a
process, so each is tried in a process of its own. The size from which on they compute is chosen for each pass.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from specrun.catalog import embedded
from specrun.catalog.gguf_file import GgufFile
from specrun.errors import UsageError
from specrun.llama import LlamaModel, tiled_kernels
from specrun.llama.batch import committed_tokens
from specrun.llama.context import ALL_SEQUENCES, ContextConfig, LlamaContext, Logits
from specrun.llama.invariance import holds, large_sizes
from specrun.llama_settings import LlamaSettings, TiledKernels
from specrun.loading.model import Model
from specrun.loading.run_options import RunOptions
from specrun.sampling import SamplingParameters
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF
from specrun.speculation.planning.pass_sizes import PassSizes
from tests.engines import code_prompts, first_difference, write
from tests.models import wide_target

ROOT = Path(__file__).parents[2]
# Prints the groups of sizes whose passes gave the same bits, and whether trees wrote what plain decoding wrote.
CODE = """
import json, sys
from pathlib import Path
from specrun.catalog import embedded
from specrun.loading.model import Model
from specrun.loading.run_options import RunOptions
from specrun.llama import tiled_kernels
from specrun.llama.invariance import Comparison
from specrun.llama_settings import LlamaSettings
from specrun.sampling import SamplingParameters
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF
from tests.engines import code_prompts, first_difference, write

target, tiled = Path(sys.argv[1]), sys.argv[2] or None
settings = LlamaSettings(threads=1, repack=False, tiled=tiled)
written = []
for plan in (OFF.plan(), CHAIN.plan(depth=5), SPECEXEC.plan(64, 12)):
    one_thread, room = LlamaSettings(threads=1), SPECEXEC.plan(64, 8)
    options = RunOptions(target, embedded.DRAFT, (plan,), room, 1024, settings, one_thread)
    with Model(options) as model:
        engine = model.engine
        for temperature in (0.0, 0.8):
            prompt = code_prompts(engine, 1, 480)[0]
            written.append(write(engine, prompt, SamplingParameters(temperature=temperature, seed=1), plan, 40))
        engine.reset()
        groups = Comparison(engine.target, range(1, 200), 64).survey().groups
differences = [first_difference(written[i], written[i % 2]) for i in range(2, 6)]
print(json.dumps({"groups": groups, "differences": differences, "in_use": tiled_kernels.in_use()}))
"""


def run(target: Path, tiled: TiledKernels | None, environment: dict[str, str] | None = None) -> dict[str, object]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("GGML_CPU_TILED")}
    command = [sys.executable, "-c", CODE, str(target), tiled or ""]
    done = subprocess.run(
        command, cwd=ROOT, env=env | (environment or {}), stdout=subprocess.PIPE, text=True, check=True
    )
    result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.fixture(scope="module")
def q4_k_m(made: Path) -> Path:
    """A model that tiled kernels compute from 8 tokens on, if this CPU has them."""
    target = wide_target(made, "q4_k_m")
    groups = run(target, None)["groups"]
    assert isinstance(groups, list)
    if len(groups) == 1:
        pytest.skip("this CPU has no tiled kernels: passes of all sizes give the same bits")
    return target


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("tiled", ["never", "always"])
def test_passes_of_every_size_give_the_same_bits(tiled: TiledKernels, q4_k_m: Path) -> None:
    # The environment says the opposite, and gives way.
    opposite = {"GGML_CPU_TILED_MM": "0"} if tiled == "always" else {"GGML_CPU_TILED_MM_FORCE": "1"}
    result = run(q4_k_m, tiled, opposite)
    assert result["in_use"] == tiled
    assert len(result["groups"]) == 1, result["groups"]  # type: ignore[arg-type]
    assert result["differences"] == [None] * 4


@pytest.mark.slow
def test_what_the_environment_says_is_known(q4_k_m: Path) -> None:
    result = run(q4_k_m, None, {"GGML_CPU_TILED_MM": "0"})
    assert result["in_use"] == "never"
    assert len(result["groups"]) == 1  # type: ignore[arg-type]


def test_they_begin_at_the_size_that_the_settings_say(made: Path) -> None:
    path, least, tokens = wide_target(made, "q4_k_m"), 12, [5 + 7 * i % 90 for i in range(64)]
    rows: dict[int | None, dict[int, Logits]] = {}
    for tiled_from in (None, least):
        settings = LlamaSettings(threads=1, type_k="f16", type_v="bf16", tiled_from=tiled_from)
        config = ContextConfig(n_ctx=64, n_seq_max=1, n_batch=64, n_outputs=64, settings=settings)
        with LlamaModel(path, settings) as model, LlamaContext(model, config) as context:
            rows[tiled_from] = {}
            for n in (4, 16, 1, 8, least, least - 1, 64, 7):
                context.remove(ALL_SEQUENCES, 0)
                rows[tiled_from][n] = context.decode(committed_tokens(tokens[:n], 0, 1, n_outputs=n)).copy()
    usual, later = rows[None], rows[least]
    for n, found in later.items():
        assert np.array_equal(found, usual[n] if n >= least or n < 8 else later[least - 1][:n]), n
    assert np.array_equal(later[least - 1][:7], usual[7]), "the kernels of the smallest passes"
    if tiled_kernels.compute(GgufFile.read(path).types) and tiled_kernels.in_use() == "auto":
        assert not np.array_equal(usual[8][:7], usual[7])


def test_trees_have_the_bits_of_plain_decoding_below_the_size_where_they_begin(made: Path) -> None:
    written = []
    for plan in (OFF.plan(), CHAIN.plan(depth=11), SPECEXEC.plan(24, 8)):
        settings = LlamaSettings(threads=1, type_v="bf16", repack=False, tiled_from=32)
        room = SPECEXEC.plan(24, 8)
        options = RunOptions(wide_target(made, "q4_k_m"), embedded.DRAFT, (plan,), room, 512, settings, settings)
        with Model(options) as model:
            (prompt,) = code_prompts(model.engine, 1, 100)
            written.append(write(model.engine, prompt, SamplingParameters(temperature=0.8, seed=1), plan, 60))
    assert [first_difference(one, written[0]) for one in written[1:]] == [None, None]


@pytest.mark.slow
def test_larger_passes_have_a_class_of_their_own(made: Path) -> None:
    settings = LlamaSettings(threads=1, type_v="bf16", repack=False, tiled_from=13)
    assert large_sizes(settings) == PassSizes(16, 4)
    options = RunOptions(wide_target(made, "q4_k_m"), None, (OFF.plan(),), SPECEXEC.plan(64, 8), 1024, settings)
    with Model(options) as model:
        (tokens,) = code_prompts(model.engine, 1, 200)
        assert holds(large_sizes(settings), model.engine.target, tokens, 64)


def test_kernels_that_this_process_does_not_use_are_refused() -> None:
    options = RunOptions(embedded.TARGET, None, (OFF.plan(),), ctx_size=64)
    with Model(options):
        other: TiledKernels = "never" if tiled_kernels.in_use() != "never" else "always"
        wanting = RunOptions(embedded.TARGET, None, (OFF.plan(),), ctx_size=64, settings=LlamaSettings(tiled=other))
        with pytest.raises(UsageError, match="in a process of its own"):
            Model(wanting)


@pytest.mark.parametrize(
    ("values", "kernels"),
    [
        ({}, "auto"),
        ({"GGML_CPU_TILED_MM": "0"}, "never"),
        ({"GGML_CPU_TILED_MM": "1"}, "auto"),
        ({"GGML_CPU_TILED_MM_FORCE": "1"}, "always"),
        ({"GGML_CPU_TILED_MM_FORCE": "2"}, "auto"),
        ({"GGML_CPU_TILED_MM": "no", "GGML_CPU_TILED_MM_FORCE": "1"}, "never"),
    ],
)
def test_the_environment_is_read_as_llama_cpp_reads_it(
    values: dict[str, str], kernels: TiledKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiled_kernels, "_settled", None)
    for name in ("GGML_CPU_TILED_MM", "GGML_CPU_TILED_MM_FORCE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    assert tiled_kernels.in_use() == kernels
    tiled_kernels.settle(None)
    assert tiled_kernels.in_use() == kernels
    with pytest.raises(UsageError):
        tiled_kernels.settle("never" if kernels != "never" else "auto")


def test_which_weights_they_compute() -> None:
    with_them = tiled_kernels.compute({"F32", "Q4_K", "Q6_K"})
    assert not tiled_kernels.compute({"F32", "Q8_0", "Q4_0"})
    assert tiled_kernels.compute({"IQ4_XS"}) == with_them
