"""Small models that stand for a target: their types, their shapes, and that llama.cpp runs them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from specrun.catalog.gguf_file import GgufFile
from specrun.llama import LlamaModel
from specrun.tuning.miniature import Layers
from tests.models import random_llama, random_qwen3_moe, wide_target

_FILE_TYPES = {"q4_0": 2, "q8_0": 7, "q4_k_m": 15, "iq4_nl": 25, "iq4_xs": 30}


def layers(path: Path) -> Layers:
    return Layers(GgufFile.read(path))


@pytest.mark.slow
@pytest.mark.parametrize("kind", _FILE_TYPES)
def test_the_quantizer_mixes_a_skeleton_as_it_mixes_the_model(kind: str, made: Path, tmp_path: Path) -> None:
    real, other = layers(wide_target(made, kind)), layers(wide_target(made, "f16"))
    assert real.is_usual
    assert other.quantized(_FILE_TYPES[kind], tmp_path) == real.types


@pytest.mark.slow
@pytest.mark.parametrize("n_layers", [2, 4, 8])
def test_a_miniature_has_the_targets_shapes_and_shares_of_types(n_layers: int, made: Path, tmp_path: Path) -> None:
    target = GgufFile.read(wide_target(made, "q4_k_m"))
    small = GgufFile.read(Layers(target).write(tmp_path / "a.gguf", Layers(target).types, n_layers))
    shapes = {tensor.name: tensor.shape for tensor in target.tensors}
    for tensor in small.tensors:
        expected = shapes[tensor.name]
        if tensor.name in ("token_embd.weight", "output.weight"):
            expected = (expected[0], target.n_vocab * n_layers // target.n_layers)
        assert tensor.shape == expected, tensor.name
    downs = Counter(tensor.type for tensor in small.tensors if "ffn_down" in tensor.name)
    assert downs == {"Q4_K": n_layers // 2, "Q6_K": n_layers // 2}
    with LlamaModel(small.path) as model:
        assert model.n_vocab == target.n_vocab * n_layers // target.n_layers


def test_models_that_no_miniature_stands_for(tmp_path: Path) -> None:
    assert not layers(random_qwen3_moe(tmp_path / "moe.gguf")).is_usual
    assert not layers(random_llama(tmp_path / "narrow.gguf", n_embd=64)).is_usual
