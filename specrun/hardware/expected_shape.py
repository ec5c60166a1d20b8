"""The shape of a model whose file is not here, by what the catalog says of it."""

from __future__ import annotations

from specrun.catalog.entries import Entry
from specrun.hardware.model_shape import ModelShape, activations, gpu_activations

_FEED_FORWARD = 3.5  # width of a feed-forward layer, or of the experts that a token uses, as a multiple of the model's
_FLOAT_BYTES = 4
_EXPERT_TENSORS = 3  # matrices of all experts of a layer: up, gate and down
_DENSE_SHARE = 0.27  # of the largest matrix of a layer without experts


def expected_shape(entry: Entry, n_cells: int) -> ModelShape | None:
    """The shape of a model of the catalog whose KV cache holds `n_cells` tokens in f16; None if the catalog says too
    little.

    Layers are taken to be equal. `tests/hardware/test_expected_shape.py` compares it with that of real files.
    """
    shape, n_bytes = entry.shape, entry.expected_bytes
    if shape is None or n_bytes is None or not entry.vocabulary:
        return None
    embedding, output = entry.table_bytes
    in_layers = n_bytes - embedding - (0 if entry.tied else output)
    experts = entry.expert_bytes // shape.layers
    layer = in_layers // shape.layers - experts
    if layer <= 0:
        return None
    largest = experts // _EXPERT_TENSORS if experts else int(layer * _DENSE_SHARE)
    widest = _FEED_FORWARD * shape.width
    return ModelShape(
        layers=(layer,) * shape.layers,
        experts=(experts,) * shape.layers,
        kv=(n_cells * shape.kv // shape.layers,) * shape.layers,
        embedding=embedding,
        output=output,
        is_tied=entry.tied,
        largest=max(largest, output),
        n_vocab=entry.vocabulary,
        activations=activations(shape.width, widest, n_cells),
        gpu_activations=gpu_activations(shape.width, widest, shape.experts, shape.experts_used, n_cells),
        state=shape.width * _FLOAT_BYTES,
    )
