"""Large passes that copy weights from RAM to the device, from several sizes on, or never: the text stays the target's.

llama.cpp reads the size once a process, so each has its own.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specrun.catalog import embedded
from tests.conftest import Specrun
from tests.models import wide_heads

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
