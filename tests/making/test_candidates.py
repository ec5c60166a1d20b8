"""Which drafts could be made, how they are named, and what the quantizer's process writes, refuses and leaves."""

from __future__ import annotations

from pathlib import Path

import gguf
import llama_cpp
import psutil
import pytest

from specrun.catalog.gguf_file import GgufFile
from specrun.errors import LlamaError, UsageError
from specrun.llama import LlamaModel
from specrun.making.make import FILE_TYPES, Candidate, candidates, kept_layers, parse_shares, parse_types
from tests.models import random_llama, random_qwen3_moe, split


@pytest.mark.parametrize(
    ("n_layers", "share", "kept"),
    [
        (8, 0.5, (0, 2, 5, 7)),
        (8, 1.0, tuple(range(8))),
        (48, 0.05, (0, 47)),
        (2, 0.5, (0, 1)),
        (1, 0.5, (0,)),
    ],
)
def test_first_and_last_layers_stay_and_the_middle_is_thinned_evenly(
    n_layers: int, share: float, kept: tuple[int, ...]
) -> None:
    assert kept_layers(n_layers, share) == kept


def test_every_type_with_every_selection_but_not_the_target_itself() -> None:
    found = candidates(("q2_k", "same"), (0.5, 1.0, 0.55), 8)
    assert [candidate.name for candidate in found] == ["q2_k", "q2_k, 4 of 8 layers", "4 of 8 layers"]
    assert [candidate.file_name for candidate in found] == [
        "draft-q2_k-8of8.gguf",
        "draft-q2_k-4of8.gguf",
        "draft-same-4of8.gguf",
    ]
    assert found[1].dropped == [1, 3, 4, 6]


def test_types_are_llama_cpps() -> None:
    for name, number in FILE_TYPES.items():
        assert name == "same" or gguf.LlamaFileType[f"MOSTLY_{name.upper()}"] == number


def test_lists_on_the_command_line() -> None:
    assert parse_types("Q2_K, q4_0,q2_k") == ("q2_k", "q4_0")
    assert parse_shares("1,0.5") == (1.0, 0.5)
    for text in ("", "q9_k", "q2_k,"):
        with pytest.raises(UsageError, match="choose among q2_k"):
            parse_types(text)
    for text in ("", "half", "0", "1.5", "nan"):
        with pytest.raises(UsageError, match="--keep-layers"):
            parse_shares(text)


def go_on() -> None:
    pass


def candidate(file_type: str, n_layers: int, share: float = 1.0) -> Candidate:
    return Candidate(file_type, kept_layers(n_layers, share), n_layers)


@pytest.mark.slow
def test_a_pruned_draft_has_fewer_layers_and_loads(demo_target: Path, tmp_path: Path) -> None:
    path = tmp_path / "draft.gguf"
    half = candidate("q2_k", 8, 0.5)
    half.write(demo_target, path, go_on)
    file = GgufFile.read(path)
    assert (file.n_layers, len(file.layer_bytes), file.quantization) == (4, 4, "Q2_K")
    assert half.write(demo_target, None, go_on) == pytest.approx(file.n_bytes, abs=2**20 / 100)
    with LlamaModel(path) as model:
        assert llama_cpp.llama_model_n_layer(model.handle) == 4


@pytest.mark.slow
def test_layers_alone_are_left_out_and_the_others_are_the_targets_bytes(demo_target: Path, tmp_path: Path) -> None:
    path = tmp_path / "draft.gguf"
    candidate("same", 8, 0.5).write(demo_target, path, go_on)
    ours, theirs = ({t.name: t for t in gguf.GGUFReader(file).tensors} for file in (path, demo_target))
    for i, kept in enumerate((0, 2, 5, 7)):
        name = "blk.{}.ffn_up.weight"
        assert (ours[name.format(i)].data == theirs[name.format(kept)].data).all()
    assert set(GgufFile.read(path).types) == set(GgufFile.read(demo_target).types)


def test_split_targets_and_mixtures_of_experts(tmp_path: Path) -> None:
    whole = random_qwen3_moe(tmp_path / "moe.gguf", n_layer=4)
    path = tmp_path / "draft.gguf"
    candidate("q4_0", 4, 0.5).write(split(tmp_path / "moe.gguf", whole, 3), path, go_on)
    file = GgufFile.read(path)
    assert (file.shards, file.n_layers) == ((path,), 2)
    LlamaModel(path).close()


@pytest.mark.slow
def test_what_the_quantizer_says_is_the_reason(tmp_path: Path) -> None:
    with pytest.raises(LlamaError, match=r"failed to load model from .*none.gguf"):
        candidate("q2_k", 8).write(tmp_path / "none.gguf", None, go_on)
    model = random_llama(tmp_path / "model.gguf")
    with pytest.raises(LlamaError, match=r"open|iostream"):
        candidate("q4_0", 2).write(model, tmp_path / "no folder" / "draft.gguf", go_on)


def test_a_quantizer_that_dies_is_a_reason_too(tmp_path: Path) -> None:
    model = random_llama(tmp_path / "model.gguf")
    with pytest.raises(LlamaError, match="ended by signal"):
        candidate("q4_0", 2).write(model, model, go_on)  # it maps the file that it overwrites


def test_an_exception_from_wait_stops_the_quantizer(demo_target: Path, tmp_path: Path) -> None:
    path = tmp_path / "draft.gguf"

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        candidate("q2_k", 8).write(demo_target, path, stop)
    mine = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    assert not any(str(path) in " ".join(command) for command in mine)
