"""The mixture that scripts/make_mixture.py makes runs, and does not always choose the same experts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.layer_states import expert_pages
from specrun.llama import LlamaModel, TargetContext
from specrun.llama.context import LlamaContext
from specrun.llama.streaming.address_space import PAGE
from specrun.llama.streaming.cached_experts import CachedExperts
from tests.streams import CALM, CONFIG

SCRIPT = Path(__file__).parents[2] / "scripts" / "make_mixture.py"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="experts are read as they are chosen on Linux only")
def test_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.gguf"
    shape = ["--layers", "2", "--experts", "16", "--used", "3", "--embd", "128", "--ff", "64"]
    subprocess.run([sys.executable, str(SCRIPT), str(path), *shape], check=True, capture_output=True, timeout=60)
    file = GgufFile.read(path)
    assert (file.n_layers, file.n_experts, file.n_experts_used) == (2, 16, 3)
    n_chosen: list[int] = []
    monkeypatch.setattr(CachedExperts, "_read", lambda _, _layer, counts: n_chosen.append(np.count_nonzero(counts)))
    with (
        LlamaModel(path) as model,
        CachedExperts(expert_pages(file, PAGE), 3, 1 << 60, CALM) as weights,
        LlamaContext(model, CONFIG, weights) as made,
    ):
        TargetContext(made).set_prompt(list(range(60)))
    assert max(n_chosen) > 3
