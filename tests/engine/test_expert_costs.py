"""The share of a mixture's time that its experts take, by where they lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from specrun.catalog import embedded
from specrun.catalog.gguf_file import GgufFile
from specrun.engine import placing
from specrun.engine.expert_costs import expert_growth
from specrun.engine.run_options import RunOptions
from specrun.hardware.memory import Memory
from specrun.speculation.method import OFF
from tests.models import random_qwen3_moe


def options(target: Path) -> RunOptions:
    return RunOptions(target, None, (OFF.plan(),))


def test_in_one_memory_it_is_that_of_the_bytes(tmp_path: Path) -> None:
    path = random_qwen3_moe(tmp_path / "moe.gguf", n_layer=4, n_expert=8)
    growth = expert_growth(options(path))
    assert growth
    assert (growth.n_experts, growth.n_used) == (8, 2)
    file = GgufFile.read(path)
    read = sum(file.expert_bytes) / 4
    dense = file.n_bytes - sum(file.expert_bytes) - file.embedding_bytes
    assert growth.share == pytest.approx(read / (read + dense), rel=0.01)


def test_where_experts_come_from_disk_they_take_nearly_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = random_qwen3_moe(tmp_path / "moe.gguf", n_layer=4, n_expert=8)
    in_ram = expert_growth(options(path))
    monkeypatch.setattr(placing.Memory, "read", lambda: Memory(1000, 1000))
    streamed = expert_growth(options(path))
    assert in_ram
    assert streamed
    assert in_ram.share < 0.8 < streamed.share < 1


def test_another_model_has_none() -> None:
    assert expert_growth(options(embedded.TARGET)) is None
