"""Large passes that copy weights from RAM to the device, from several sizes on, or never: the text stays the target's.

llama.cpp reads the size once a process, so each has its own.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from specrun.catalog import embedded
from specrun.hardware.machine import Device
from specrun.llama_settings import LlamaSettings, LoadMode
from specrun.loading.default_settings import with_defaults
from specrun.loading.model import Model
from specrun.loading.placing import plan_load
from specrun.loading.run_options import RunOptions
from specrun.speculation.method import OFF
from tests.conftest import Specrun
from tests.models import wide_heads, wide_target

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


@pytest.mark.parametrize("threshold", ["8", "64", "never"])
def test_the_text_does_not_depend_on_the_plan(threshold: str, specrun: Specrun, made: Path) -> None:
    options = ["--target", str(wide_heads(made, 64 if threshold == "8" else 128)), "--draft", str(embedded.DRAFT)]
    options += ["-ngl", "4", "--raw", "--temp", "0", "-n", "24", "--no-learn", "--json", "--exact"]
    environment = {}
    if threshold == "never":
        options.append("--no-op-offload")
    else:
        environment["GGML_OP_OFFLOAD_MIN_BATCH"] = threshold
    written = {}
    for plan in (["--speculate", "off"], ["--speculate", "tree", "--budget", "16"]):
        result = specrun("generate", *options, *plan, "def read_config(path):", **environment)
        assert result.code == 0, result
        written[plan[1]] = json.loads(result.stdout)
    assert written["tree"]["token_ids"] == written["off"]["token_ids"]
    assert written["tree"]["passes"] < written["off"]["passes"]


def held(options: RunOptions, caplog: pytest.LogCaptureFixture) -> str:
    """llama.cpp's lines about the memory that it keeps the target's weights in."""
    caplog.clear()
    with caplog.at_level(logging.INFO, "specrun.llama"), Model(options):
        pass
    return "\n".join(line for line in caplog.messages if "model buffer size" in line)


@pytest.mark.parametrize("load_mode", [None, "mmap"])
def test_by_default_weights_in_ram_lie_where_the_device_copies_them_at_the_full_rate(
    load_mode: LoadMode | None, gpu: Device, caplog: pytest.LogCaptureFixture
) -> None:
    decided = LlamaSettings(gpu_layers=4, load_mode=load_mode)
    plan = with_defaults(plan_load(RunOptions(embedded.TARGET, None, (OFF.plan(),), settings=decided)))
    assert (f"{gpu.backend}_Host" in held(plan.options, caplog)) == (load_mode is None)


def test_weights_in_ram_can_be_re_ordered_beside_a_device(made: Path, caplog: pytest.LogCaptureFixture) -> None:
    target = wide_target(made, "q4_k_m")
    alone, beside = (LlamaSettings(repack=True, gpu_layers=n) for n in (0, 1))
    if "REPACK" not in held(RunOptions(target, None, (OFF.plan(),), settings=alone), caplog):
        pytest.skip("this CPU has no kernels for re-ordered weights of this type")
    assert "REPACK" in held(RunOptions(target, None, (OFF.plan(),), settings=beside), caplog)
    assert "REPACK" not in held(RunOptions(target, None, (OFF.plan(),), settings=replace(beside, repack=None)), caplog)
