"""A dense llama in numpy: what its attention and its feed-forward layers compute, in float32, for several texts."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray
from widening.checks import WideningError, checked

from specrun.making.widening import EPSILON

Floats = NDArray[np.float32]
ROPE_BASE = 10_000.0  # of llama.cpp, where a file names none


class DenseLlama:
    """A GGUF file of the architecture llama. Raises WideningError for a file that this does not compute."""

    def __init__(self, path: Path) -> None:
        self.source, self.shape = checked(path, {})
        if (scaling := self._value("llama.rope.scaling.type", "none")) != "none":
            raise WideningError(f"{path} scales its positions ({scaling}); choose another model")
        self._epsilon = float(self._value(EPSILON, 0))
        self._rope_base = float(self._value("llama.rope.freq_base", ROPE_BASE))

    def _value(self, key: str, otherwise: float | str) -> float | str:
        field = self.source.fields.get(key)
        return otherwise if field is None else field.contents()

    def weights(self, name: str) -> Floats:
        """A tensor, float32[n_out, n_in] or [n]."""
        tensor = self.source.tensors[f"{name}.weight"]
        return np.asarray(gguf.quants.dequantize(tensor.data, tensor.tensor_type), np.float32)

    def norm(self, name: str, x: Floats) -> Floats:
        """RMS norm over the last axis, with the weights of that name."""
        return x / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + self._epsilon) * self.weights(name)

    def attention(self, layer: int, x: Floats) -> Floats:
        """What the attention of a layer adds to its input. x: float32[n_texts, n, n_embd]; returns that shape."""
        n, head_dim, n_kv_heads = x.shape[1], self.shape.head_dim, self.shape.kv_heads
        inputs = self.norm(f"blk.{layer}.attn_norm", x)
        q, k, v, out = (self.weights(f"blk.{layer}.attn_{part}").T for part in ("q", "k", "v", "output"))
        q = q * np.float32(head_dim**-0.5)
        turns = self._turns(n)
        future = np.triu(np.full((n, n), -np.inf, np.float32), 1)
        added = np.empty_like(x)
        for text, result in zip(inputs, added, strict=True):
            # [key/value heads, n, head_dim], for queries with the heads that share one behind each other. numpy is ten
            # times as slow with a product that is repeated along an axis.
            queries = _turned((text @ q).reshape(n, n_kv_heads, -1, head_dim).transpose(1, 2, 0, 3), turns)
            keys, values = ((text @ part).reshape(n, n_kv_heads, head_dim).swapaxes(0, 1) for part in (k, v))
            scores = queries.reshape(n_kv_heads, -1, head_dim) @ _turned(keys, turns).swapaxes(1, 2)
            by_head = scores.reshape(-1, n, n)
            by_head += future
            by_head -= by_head.max(axis=-1, keepdims=True)
            np.exp(by_head, out=by_head)
            by_head /= by_head.sum(axis=-1, keepdims=True)
            heads = (scores @ values).reshape(-1, n, head_dim)
            result[:] = heads.swapaxes(0, 1).reshape(n, -1) @ out
        return added

    def _turns(self, n: int) -> NDArray[np.complex64]:
        """The rotary positions 0 .. n - 1: complex64[n, head_dim / 2]."""
        pairs = np.arange(0, self.shape.head_dim, 2) / self.shape.head_dim
        factors = self.weights("rope_freqs") if "rope_freqs.weight" in self.source.tensors else 1.0
        return np.exp(1j * np.outer(np.arange(n), self._rope_base**-pairs / factors)).astype(np.complex64)

    def neurons(self, layer: int, inputs: Floats) -> Floats:
        """What the neurons of a feed-forward layer pass on, silu(gate) * up: float32[n, n_ff].

        inputs: float32[n, n_embd], normed.
        """
        gate = inputs @ self.weights(f"blk.{layer}.ffn_gate").T
        return gate / (1 + np.exp(-gate)) * (inputs @ self.weights(f"blk.{layer}.ffn_up").T)


def _turned(heads: Floats, turns: NDArray[np.complex64]) -> Floats:
    """With rotary positions, which turn pairs of neighbours in llama.cpp's order of this architecture."""
    return (np.ascontiguousarray(heads).view(np.complex64) * turns).view(np.float32)
