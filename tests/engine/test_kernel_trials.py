"""The layer on which trials run: it has the heads of the file that it stands for."""

from __future__ import annotations

from pathlib import Path

from specrun.catalog import embedded
from specrun.catalog.gguf_file import GgufFile
from specrun.engine.kernel_trials import Heads


def test_heads_are_those_of_the_file(tmp_path: Path) -> None:
    target = GgufFile.read(embedded.TARGET)
    heads = Heads.of(target)
    assert heads
    assert heads.n_heads == target.n_heads
    small = GgufFile.read(heads.write(tmp_path / "attention.gguf", 256, 256, "F16"))
    assert Heads.of(small) == heads
    assert small.n_layers == 1
