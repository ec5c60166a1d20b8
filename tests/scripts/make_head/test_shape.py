"""For which targets heads can be made, of which sizes, and the target's weights that they begin with."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from scripts.make_head.shape import embedding_rows, last_layer, output_rows, shape_for
from specrun.catalog import embedded
from specrun.catalog.gguf_file import GgufFile
from specrun.errors import ModelFileError, PairError
from tests.dense_models import random_dense
from tests.hybrids import random_qwen35
from tests.models import Reader, random_llama


def test_the_head_has_the_sizes_of_the_last_layer() -> None:
    shape = shape_for(GgufFile.read(embedded.TARGET))
    assert (shape.width, shape.heads, shape.head_width, shape.feed_forward) == (256, 8, 32, 896)
    assert shape.target_layers == (1, 4, 7)
    assert shape.copies_attention
    assert shape.copies_feed_forward


def test_layers_that_are_unlike_the_heads_are_not_taken_over(tmp_path: Path) -> None:
    shape = shape_for(GgufFile.read(random_qwen35(tmp_path / "hybrid.gguf")))
    assert not shape.copies_attention
    assert not shape.copies_feed_forward
    assert shape.heads * shape.head_width == shape.width


def test_targets_that_no_head_can_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PairError, match="gives no states of the layers of qwen2 models"):
        shape_for(GgufFile.read(random_dense(tmp_path / "qwen2.gguf", "qwen2", is_tied=True)))
    with pytest.raises(PairError, match="it has 2 layers, and 4 are needed"):
        shape_for(GgufFile.read(random_llama(tmp_path / "short.gguf", n_layer=2)))
    with pytest.raises(ModelFileError, match="which writes nothing by itself"):
        shape_for(GgufFile.read(embedded.HEAD))


def test_weights_are_dequantised() -> None:
    file = GgufFile.read(embedded.TARGET)
    tensors = {
        tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        for tensor in Reader(embedded.TARGET).tensors
    }
    found = last_layer(file, shape_for(file))
    for name in ("attn_q", "attn_norm", "ffn_down"):
        np.testing.assert_array_equal(found[name], tensors[f"blk.7.{name}.weight"])
    np.testing.assert_array_equal(found["output_norm"], tensors["output_norm.weight"])
    some = np.array([3, 5, 2047])
    np.testing.assert_array_equal(output_rows(file, some), tensors["token_embd.weight"][some])
    np.testing.assert_array_equal(embedding_rows(file, some), tensors["token_embd.weight"][some])
