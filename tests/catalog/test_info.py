"""The kind of a model by its file."""

from __future__ import annotations

from pathlib import Path

from specrun.catalog import embedded
from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.info import kind_of
from tests.models import random_mamba, random_qwen3_moe


def test_kinds_of_files(tmp_path: Path) -> None:
    assert kind_of(GgufFile.read(embedded.TARGET)) == "dense"
    assert kind_of(GgufFile.read(random_mamba(tmp_path / "mamba.gguf"))) == "hybrid"
    assert kind_of(GgufFile.read(random_qwen3_moe(tmp_path / "moe.gguf"))) == "moe"
