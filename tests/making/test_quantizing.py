"""The quantizer in its own process: what it writes, and what happens when it refuses, dies or is stopped."""

from __future__ import annotations

from pathlib import Path

import gguf
import psutil
import pytest

from specrun.catalog.gguf_file import GgufFile
from specrun.errors import LlamaError
from specrun.llama import LlamaModel
from specrun.making import quantizing
from specrun.making.candidates import Candidate, kept_layers
from tests.models import random_llama, random_qwen3_moe, split


def go_on() -> None:
    pass


def candidate(file_type: str, n_layers: int, share: float = 1.0) -> Candidate:
    return Candidate(file_type, kept_layers(n_layers, share), n_layers)


@pytest.mark.slow
def test_a_pruned_draft_has_fewer_layers_and_loads(demo_target: Path, tmp_path: Path) -> None:
    path = tmp_path / "draft.gguf"
    half = candidate("q2_k", 8, 0.5)
    quantizing.write(demo_target, path, half, go_on)
    file = GgufFile.read(path)
    assert (file.n_layers, len(file.layer_bytes), file.quantization) == (4, 4, "Q2_K")
    assert quantizing.size_of(demo_target, half, go_on) == pytest.approx(file.n_bytes, abs=2**20 / 100)
    with LlamaModel(path) as model:
        assert model.metadata("llama.block_count") == "4"


@pytest.mark.slow
def test_layers_alone_are_left_out_and_the_others_are_the_targets_bytes(demo_target: Path, tmp_path: Path) -> None:
    path = tmp_path / "draft.gguf"
    quantizing.write(demo_target, path, candidate("same", 8, 0.5), go_on)
    ours, theirs = ({t.name: t for t in gguf.GGUFReader(file).tensors} for file in (path, demo_target))
    for i, kept in enumerate((0, 2, 5, 7)):
        name = "blk.{}.ffn_up.weight"
        assert (ours[name.format(i)].data == theirs[name.format(kept)].data).all()
    assert set(GgufFile.read(path).types) == set(GgufFile.read(demo_target).types)


@pytest.mark.slow
def test_split_targets_and_mixtures_of_experts(tmp_path: Path) -> None:
    whole = random_qwen3_moe(tmp_path / "moe.gguf", n_layer=4)
    path = tmp_path / "draft.gguf"
    quantizing.write(split(tmp_path / "moe.gguf", whole, 3), path, candidate("q4_0", 4, 0.5), go_on)
    file = GgufFile.read(path)
    assert (file.shards, file.n_layers) == ((path,), 2)
    LlamaModel(path).close()


@pytest.mark.slow
def test_what_the_quantizer_says_is_the_reason(tmp_path: Path) -> None:
    with pytest.raises(LlamaError, match=r"failed to load model from .*none.gguf"):
        quantizing.size_of(tmp_path / "none.gguf", candidate("q2_k", 8), go_on)
    model = random_llama(tmp_path / "model.gguf")
    with pytest.raises(LlamaError, match=r"open|iostream"):
        quantizing.write(model, tmp_path / "no folder" / "draft.gguf", candidate("q4_0", 2), go_on)


def test_a_quantizer_that_dies_is_a_reason_too(tmp_path: Path) -> None:
    model = random_llama(tmp_path / "model.gguf")
    with pytest.raises(LlamaError, match="ended by signal"):
        quantizing.write(model, model, candidate("q4_0", 2), go_on)  # it maps the file that it overwrites


def test_an_exception_from_wait_stops_the_quantizer(demo_target: Path, tmp_path: Path) -> None:
    path = tmp_path / "draft.gguf"

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantizing.write(demo_target, path, candidate("q2_k", 8), stop)
    mine = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    assert not any(str(path) in " ".join(command) for command in mine)
