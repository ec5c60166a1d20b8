"""Widening a GGUF model without changing what it computes: what every tensor and every metadata key of the wider model
is, and writing it. docs/widening.md has the formulas.

A matrix is uint8[rows, columns / 32, bytes of 32 weights], in the bytes that the file holds: placing encoded blocks
needs no decoding, so weights keep their bits.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import gguf
import numpy as np
from numpy.typing import NDArray

UNIT = 32  # weights of a quantized block; all sizes are multiples, so that blocks move as they are

Blocks = NDArray[np.uint8]
Floats = NDArray[np.float32]
Type: TypeAlias = gguf.GGMLQuantizationType

_NOISE_UNITS = 1 << 15
_NOISE_SCALE = 0.02


def unit_bytes(kind: Type) -> int:
    """Bytes of 32 weights."""
    n_weights, n_bytes = gguf.GGML_QUANT_SIZES[kind]
    return int(UNIT // n_weights * n_bytes)


def encode_blocks(values: Floats, kind: Type) -> Blocks:
    """float32[rows, columns] as blocks of `kind`."""
    encoded = np.ascontiguousarray(gguf.quants.quantize(values, kind))
    return encoded.view(np.uint8).reshape(len(values), -1, unit_bytes(kind))


def read_blocks(tensor: gguf.ReaderTensor, kind: Type) -> Blocks:
    """A file's matrix as blocks of `kind`; its own bytes if it already has that type."""
    data = np.ascontiguousarray(tensor.data)
    if tensor.tensor_type == kind:
        return data.view(np.uint8).reshape(len(data), -1, unit_bytes(kind))
    return encode_blocks(gguf.quants.dequantize(data, tensor.tensor_type), kind)


MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
NORMS = ("attn_norm", "ffn_norm")
EPSILON, TOKENS = "llama.attention.layer_norm_rms_epsilon", "tokenizer.ggml.tokens"

# The marker of --vocab: a constant too small to change a norm, what the final norm makes of it where the hidden state's
# root mean square is 1, and the added tokens' weight on it.
_MARKER = 2.0**-27
_MARKER_NORMED = 32.0
_MARKER_WEIGHT = -(2.0**15)


@dataclass(frozen=True)
class Shape:
    """Sizes of a llama. head_dim: width of one attention head."""

    embd: int
    layers: int
    ff: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int


@dataclass(frozen=True)
class Source:
    """A file that can be widened. Tensors stay on disk until they are read."""

    path: Path
    shape: Shape
    tensors: dict[str, gguf.ReaderTensor]
    fields: dict[str, gguf.ReaderField]


def read_source(path: Path) -> Source:
    """Open the GGUF file of a plain llama whose sizes are multiples of 32. Nothing is checked."""
    reader = gguf.GGUFReader(path)
    fields = dict(reader.fields)

    def size(key: str, default: int = 0) -> int:
        return int(fields[f"llama.{key}"].contents()) if f"llama.{key}" in fields else default

    embd, heads = size("embedding_length"), size("attention.head_count")
    kv_heads, head_dim = size("attention.head_count_kv", heads), size("attention.key_length", embd // heads)
    n_layers, ff, vocab = size("block_count"), size("feed_forward_length"), len(fields[TOKENS].data)
    shape = Shape(embd, n_layers, ff, heads, kv_heads, head_dim, vocab)
    return Source(path, shape, {tensor.name: tensor for tensor in reader.tensors}, fields)


@dataclass(frozen=True)
class Tensor:
    """A tensor to write. shape: rows and columns, or one size. make: its data, of n_bytes."""

    name: str
    shape: tuple[int, ...]
    kind: Type
    make: Callable[[], NDArray[Any]]

    @property
    def n_bytes(self) -> int:
        """Size in the file, without padding."""
        n_weights, n_bytes = gguf.GGML_QUANT_SIZES[self.kind]
        return math.prod(self.shape) // int(n_weights) * int(n_bytes)


class WiderModel:
    """A model of other sizes that computes what its source does. Nothing is written yet.

    There are as many query heads to a key/value head as in the source, and they are as wide;
    `scripts/widening/any_model.py` allows other groups and wider heads.

    path: the source, a llama-architecture GGUF file.
    sizes: the sizes that change, by the names of the fields of `Shape`. `scripts/widening/model.py` checks whether they
        can be; nothing here does.
    kind: the type of the matrices, a name of `Type` in small letters.
    seed: of the weights that have no effect.
    """

    def __init__(self, path: Path, sizes: Mapping[str, int], kind: str, seed: int = 0) -> None:
        self.source = source = read_source(path)
        self.target = target = replace(source.shape, **sizes)
        self.kind = getattr(Type, kind.upper())
        self._rng = np.random.default_rng(seed)
        values = self._rng.standard_normal((_NOISE_UNITS, UNIT), np.float32) * np.float32(_NOISE_SCALE)
        self._pool = encode_blocks(values, self.kind).reshape(_NOISE_UNITS, -1)
        self._is_marked = target.vocab > source.shape.vocab
        share = self._residual_width() / target.embd
        self.scale = math.sqrt(share)  # of the norms' weights
        self._epsilon = source.fields[EPSILON].contents() * share
        self._tensors = list(self._all_tensors())
        self.n_parameters = sum(math.prod(tensor.shape) for tensor in self._tensors)
        self.n_bytes = sum(tensor.n_bytes for tensor in self._tensors)  # of the weights

    def write(self, destination: Path, progress: Callable[[int], None]) -> None:
        """Write the model, at first as `....partial`. progress: gets each tensor's bytes, and may raise."""
        partial = destination.with_name(f"{destination.name}.{os.getpid()}.partial")  # no other process uses this name
        writer = gguf.GGUFWriter(partial, "llama")
        try:
            for key, (value, kind, item) in self._metadata().items():
                if key == "general.alignment":
                    writer.add_custom_alignment(value)
                else:
                    writer.add_key_value(key, value, kind, item)
            for tensor in self._tensors:
                writer.add_tensor_info(tensor.name, tensor.shape, None, tensor.n_bytes, raw_dtype=tensor.kind)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            for tensor in self._tensors:
                writer.write_tensor_data(tensor.make())
                progress(tensor.n_bytes)
            writer.close()
            partial.replace(destination)
        except BaseException:
            writer.close()
            partial.unlink(missing_ok=True)
            raise

    def _residual_width(self) -> int:
        """How much of the hidden state is the source's; the rest is zero."""
        return self.source.shape.embd

    def _all_tensors(self) -> Iterator[Tensor]:
        target = self.target
        yield Tensor("token_embd.weight", (target.vocab, target.embd), self.kind, self._embedding)
        for layer in range(target.layers):
            for name in (NORMS[0], *MATRICES[:4], NORMS[1], *MATRICES[4:]):
                yield self._layer_tensor(layer, name)
        if self._is_marked:
            name = f"blk.{target.layers - 1}.attn_output.bias"
            yield Tensor(name, (target.embd,), Type.F32, lambda: self._at_marker(_MARKER))
        yield Tensor("output_norm.weight", (target.embd,), Type.F32, self._output_norm)
        if "output.weight" in self.source.tensors or self._is_marked:
            yield Tensor("output.weight", (target.vocab, target.embd), self.kind, self._output)

    # --- the layers ------------------------------------------------------------------------------------------------

    def _layer_tensor(self, layer: int, name: str) -> Tensor:
        full_name = f"blk.{layer}.{name}.weight"
        added = layer >= self.source.shape.layers
        if name in NORMS:
            source = None if added else full_name
            return Tensor(full_name, (self.target.embd,), Type.F32, lambda: self._norm(source))
        rows, columns = self._matrix_shape(name)

        def make() -> Blocks:
            matrix = self._unused(rows, columns, name)
            if not added:
                self._put(matrix, name, read_blocks(self.source.tensors[full_name], self.kind))
            return matrix

        return Tensor(full_name, (rows, columns), self.kind, make)

    def _matrix_shape(self, name: str) -> tuple[int, int]:
        target = self.target
        queries, keys = target.heads * target.head_dim, target.kv_heads * target.head_dim
        rows = {"attn_q": queries, "attn_k": keys, "attn_v": keys, "ffn_gate": target.ff, "ffn_up": target.ff}
        columns = {"attn_output": queries, "ffn_down": target.ff}
        return rows.get(name, target.embd), columns.get(name, target.embd)

    def _unused(self, rows: int, columns: int, name: str) -> Blocks:
        """A matrix whose weights have no effect: noise, but zeros where it writes into the residual stream."""
        return self._zeros(rows, columns) if name in ("attn_output", "ffn_down") else self._noise(rows, columns)

    def _zeros(self, rows: int, columns: int) -> Blocks:
        """A matrix of zeros; every type that we write encodes them as zero bytes."""
        return np.zeros((rows, columns // UNIT, unit_bytes(self.kind)), np.uint8)

    def _noise(self, rows: int, columns: int) -> Blocks:
        """Random weights by the gigabyte: pieces of one encoded pool, each from a random place."""
        flat = np.empty((rows * (columns // UNIT), unit_bytes(self.kind)), np.uint8)
        done = 0
        while done < len(flat):
            start = int(self._rng.integers(_NOISE_UNITS))
            piece = self._pool[start : start + len(flat) - done]
            flat[done : done + len(piece)] = piece
            done += len(piece)
        return flat.reshape(rows, columns // UNIT, -1)

    def _put(self, matrix: Blocks, name: str, real: Blocks) -> None:  # noqa: ARG002 - for wider models of other kinds
        """Put the source's weights where the wider model uses them."""
        matrix[: real.shape[0], : real.shape[1]] = real

    def _norm(self, full_name: str | None) -> Floats:
        """A norm's weights, zero past the source's width; 1 where the source has no such layer."""
        embd = self.source.shape.embd
        real = np.ones(embd) if full_name is None else self.source.tensors[full_name].data.astype(np.float64)
        weights = np.zeros(self.target.embd, np.float32)
        weights[:embd] = real * self.scale
        return weights

    # --- both ends -------------------------------------------------------------------------------------------------

    def _embedding(self) -> Blocks:
        real = read_blocks(self.source.tensors["token_embd.weight"], self.kind)
        matrix = self._zeros(self.target.vocab, self.target.embd)
        matrix[: len(real), : real.shape[1]] = real
        return matrix

    def _output(self) -> Blocks:
        name = "output.weight" if "output.weight" in self.source.tensors else "token_embd.weight"
        real = read_blocks(self.source.tensors[name], self.kind)
        matrix = self._noise(self.target.vocab, self.target.embd)
        matrix[: len(real), : real.shape[1]] = real
        if self._is_marked:
            matrix[len(real) :, : real.shape[1]] = 0
            matrix[: len(real), -1] = 0
            block = np.zeros((1, UNIT), np.float32)
            block[0, 0] = _MARKER_WEIGHT
            matrix[len(real) :, -1] = encode_blocks(block, self.kind)[0, 0]
        return matrix

    def _output_norm(self) -> Floats:
        weights = self._norm("output_norm.weight")
        if self._is_marked:
            weights += self._at_marker(_MARKER_NORMED / _MARKER * self.scale)
        return weights

    def _at_marker(self, value: float) -> Floats:
        """Zeros but for `value` in the marker's dimension, the first of the last block."""
        vector = np.zeros(self.target.embd, np.float32)
        vector[-UNIT] = value
        return vector

    # --- metadata --------------------------------------------------------------------------------------------------

    def _metadata(self) -> dict[str, tuple[Any, gguf.GGUFValueType, gguf.GGUFValueType | None]]:
        """The source's metadata with the sizes and the name of the wider model: by key the value, its type, and the
        type of the items of a list.
        """
        target, kinds, n = self.target, gguf.GGUFValueType, self.n_parameters
        values = {
            key: (self._with_added_tokens(key, value), field.types[0], (None, *field.types[1:])[-1])
            for key, field in self.source.fields.items()
            if not key.startswith("GGUF.") and key != "general.architecture" and (value := field.contents()) != []
        }
        sizes = {
            "vocab_size": target.vocab, "embedding_length": target.embd, "block_count": target.layers,
            "feed_forward_length": target.ff, "attention.head_count": target.heads,
            "attention.head_count_kv": target.kv_heads, "attention.key_length": target.head_dim,
            "attention.value_length": target.head_dim, "rope.dimension_count": target.head_dim,
        }  # fmt: skip
        values |= {f"llama.{key}": (size, kinds.UINT32, None) for key, size in sizes.items()}
        values["general.file_type"] = _file_type(self.kind), kinds.UINT32, None
        values[EPSILON] = self._epsilon, kinds.FLOAT32, None
        name = values["general.name"][0] if "general.name" in values else ""
        label = f"{n / 1e9:.1f}B" if n >= 1e9 else f"{n / 1e6:.1f}M"
        values["general.name"] = f"{name or self.source.path.stem} widened to {label}", kinds.STRING, None
        values["general.size_label"] = label, kinds.STRING, None
        return values

    def _with_added_tokens(self, key: str, value: Any) -> Any:
        added = range(self.source.shape.vocab, self.target.vocab)
        if key == TOKENS:
            return value + [f"[PAD{token}]" for token in added]
        of_each = {"tokenizer.ggml.token_type": int(gguf.TokenType.UNUSED), "tokenizer.ggml.scores": -10_000.0}
        return value + [of_each[key]] * len(added) if key in of_each else value


def _file_type(kind: Type) -> int:
    name = {"F32": "ALL_F32", "MXFP4": "MOSTLY_MXFP4_MOE"}.get(kind.name, f"MOSTLY_{kind.name}")
    return int(gguf.LlamaFileType[name])
