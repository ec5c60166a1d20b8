"""A dense llama with its feed-forward layers split into experts, in the architecture of Mixtral."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray
from widening.checks import WideningError

from moefication import experts as fitting
from moefication.dense import DenseLlama
from specrun.making.widening import UNIT

Floats = NDArray[np.float32]
Q8_0 = gguf.GGMLQuantizationType.Q8_0
# llama.cpp weighs the chosen experts by the softmax of their scores, divided by their sum. With scores this small the
# weights are the same to a thousandth, and their order is that of the scores.
SCORE = 2.0**-10
# llama.cpp has room for 8 operations for each tensor of a file, and each expert that a token uses takes two of them in
# a layer; more than 18 are refused with an assertion.
MOST_USED = 16
SPLIT_TOKENS = 2048  # that neurons are compared over


@dataclass(frozen=True)
class Layer:
    """experts: int64[n_experts, neurons of each]. router: float32[n_experts, n_embd]. down: float32[n_embd, n_ff]."""

    experts: NDArray[np.int64]
    router: Floats
    down: Floats


def check(dense: DenseLlama, n_experts: int, n_used: int) -> None:
    """Raise WideningError for a number of experts that cannot be."""
    n_ff = dense.shape.ff
    can_be = [n for n in range(2, n_ff // UNIT + 1) if n_ff % (n * UNIT) == 0]
    if n_experts not in can_be:
        raise WideningError(f"--experts {n_experts} does not split {n_ff} neurons by {UNIT}; give one of {can_be}")
    if not 0 < n_used <= min(n_experts, MOST_USED):
        raise WideningError(f"--used {n_used} of {n_experts} experts; give 1 to {min(n_experts, MOST_USED)}")


def fitted(dense: DenseLlama, tokens: NDArray[np.int32], n_experts: int, n_used: int) -> Iterator[Layer]:
    """The layers of the mixture, one by one, each fitted after those before it. tokens: int32[n_texts, n]."""
    exact = dense.weights("token_embd")[tokens]
    mixed = exact.copy()
    for layer in range(dense.shape.layers):
        yield fit_layer(dense, layer, exact, mixed, n_experts, n_used)


def fit_layer(dense: DenseLlama, layer: int, exact: Floats, mixed: Floats, n_experts: int, n_used: int) -> Layer:
    """Fit a layer so that it also makes up for what those before it lost.

    exact, mixed: the hidden states of the dense model and of the mixture, float32[n_texts, n, n_embd], which become
    those after the layer.
    """
    norm, down = f"blk.{layer}.ffn_norm", dense.weights(f"blk.{layer}.ffn_down")
    exact += dense.attention(layer, exact)
    neurons = dense.neurons(layer, dense.norm(norm, exact).reshape(-1, dense.shape.embd))
    exact += (neurons @ down.T).reshape(exact.shape)
    mixed += dense.attention(layer, mixed)
    inputs = dense.norm(norm, mixed).reshape(-1, dense.shape.embd)
    neurons = dense.neurons(layer, inputs)
    some = neurons[:: max(len(neurons) // SPLIT_TOKENS, 1)]
    experts = fitting.split(np.abs(some) * np.linalg.norm(down, axis=0), n_experts)
    router = fitting.fit_router(inputs, fitting.output_norms(neurons, down, experts))
    neurons *= fitting.chosen_neurons(inputs @ router.T, n_used, experts)
    # The next norm divides by the size of the state, so an error counts in proportion to it.
    weights = 1 / np.mean(np.square(exact), axis=-1).reshape(-1)
    down = fitting.fit_down(down, neurons, (exact - mixed).reshape(inputs.shape), weights)
    mixed += (neurons @ down.T).reshape(mixed.shape)
    return Layer(experts, router, down)


def write(path: Path, dense: DenseLlama, n_used: int, layers: Iterator[Layer]) -> None:
    """Write the mixture, at first under another name. All matrices keep their types, but for ffn_down in Q8_0."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    writer = gguf.GGUFWriter(partial, "llama")
    try:
        for key, field in dense.source.fields.items():
            value, item = field.contents(), field.types[-1] if len(field.types) > 1 else None
            if not key.startswith("GGUF.") and key not in ("general.architecture", "general.alignment") and value != []:
                writer.add_key_value(key, value, field.types[0], item)
        for name, tensor in dense.source.tensors.items():
            if ".ffn_" not in name or ".ffn_norm." in name:
                writer.add_tensor(name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
        for i, layer in enumerate(layers):
            _add_layer(writer, dense, i, layer, n_used)
        n_experts = len(layer.experts)
        sizes = {"feed_forward_length": dense.shape.ff // n_experts, "expert_count": n_experts}
        for key, size in (sizes | {"expert_used_count": n_used}).items():
            _set_key(writer, f"llama.{key}", size, gguf.GGUFValueType.UINT32)
        name = f"{dense.source.path.stem} split into {n_experts} experts"
        _set_key(writer, "general.name", name, gguf.GGUFValueType.STRING)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _set_key(writer: gguf.GGUFWriter, key: str, value: object, kind: gguf.GGUFValueType) -> None:
    """Set a key that the writer may have."""
    writer.kv_data[0].pop(key, None)
    writer.add_key_value(key, value, kind)


def _add_layer(writer: gguf.GGUFWriter, dense: DenseLlama, i: int, layer: Layer, n_used: int) -> None:
    writer.add_tensor(f"blk.{i}.ffn_gate_inp.weight", layer.router * np.float32(SCORE))
    for part in ("gate", "up"):
        tensor = dense.source.tensors[f"blk.{i}.ffn_{part}.weight"]
        rows = np.asarray(tensor.data)[layer.experts]
        writer.add_tensor(f"blk.{i}.ffn_{part}_exps.weight", rows, raw_dtype=tensor.tensor_type)
    # The experts' weights are 1 / n_used each, and Mixtral has no factor for them.
    down = np.ascontiguousarray((n_used * layer.down)[:, layer.experts].transpose(1, 0, 2))
    writer.add_tensor(f"blk.{i}.ffn_down_exps.weight", gguf.quants.quantize(down, Q8_0), raw_dtype=Q8_0)
