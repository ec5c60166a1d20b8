"""The models that are measured: those given, or files made here, whose cost is that of real ones of their size.

Passes, bits and memory are measured on random weights. Texts need a target and a draft that write something: those are
the embedded pair, widened (docs/widening.md). All have heads of 128, as most models have them: not all backends have
flash attention for the embedded pair's heads of 32, which the CPU would then compute.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import gguf
import make_mixture
import numpy as np
from widening import model as widening

from specrun.catalog import embedded

HEAD = 128  # width of a head
GROUP = 4  # query heads to a head of K and V
LEAST_HEADS = 8  # those of the embedded target
N_LAYERS_OF_BITS = 2  # bits depend on the sizes of matrices, not on how many layers there are
LEAST_LAYERS = 4  # so that a quarter of them is one
LEAST_LAYERS_OF_PAIR = 8  # those of the embedded target
N_CTX = 4096
_STEP = 512  # of widths: whole groups of heads, and whole blocks of K-quants
_FF = 2.75  # width of the feed-forward layers, by the width
_VOCAB = 32000
_Q4_K = gguf.GGMLQuantizationType.Q4_K
_BLOCK, _BLOCK_BYTES, _SCALE_BYTES = 256, 144, 12  # weights, bytes, and bytes of scales of a Q4_K block


@dataclass(frozen=True)
class Shape:
    """The sizes of a dense model."""

    width: int
    feed_forward: int
    n_layers: int

    @classmethod
    def of(cls, n_parameters: float) -> Shape:
        """About so many parameters, in as many layers as models of that width have."""
        # A layer has 2 + 2 / GROUP + 3 _FF squares of its width, and models have a layer for each 128 of it.
        squares = 2 + 2 / GROUP + 3 * _FF
        width = max(_STEP, round((n_parameters * HEAD / squares) ** (1 / 3) / _STEP) * _STEP)
        return cls(
            width, round(_FF * width / _BLOCK) * _BLOCK, max(LEAST_LAYERS, round(n_parameters / (squares * width**2)))
        )


@dataclass(frozen=True)
class Pair:
    """A target and a draft."""

    target: Path
    draft: Path


class Models:
    """The files to measure, each made when it is first asked for.

    folder: where they are made. n_parameters: of those that are made. given: a target and, for texts, a draft, which
    are measured instead.
    """

    def __init__(self, folder: Path, n_parameters: float, given: tuple[Path, Path | None] | None = None) -> None:
        self._folder = folder
        self._given = given
        self.shape = Shape.of(n_parameters)

    def __str__(self) -> str:
        """For the page."""
        if self._given:
            return " and ".join(path.name for path in self._given if path)
        shape = self.shape
        size = f"{shape.n_layers} layers of {shape.width} in Q4_K"
        return f"made by this command: random weights, {size}; for texts the embedded pair, as wide"

    @property
    def is_made(self) -> bool:
        """Whether the models are made here."""
        return self._given is None

    @cached_property
    def dense(self) -> Path:
        """For passes and memory."""
        return self._given[0] if self._given else self._random("dense", self.shape)

    @cached_property
    def for_bits(self) -> Path:
        """For bits: the same matrices in fewer layers."""
        few = Shape(self.shape.width, self.shape.feed_forward, N_LAYERS_OF_BITS)
        return self._given[0] if self._given else self._random("bits", few)

    @cached_property
    def mixture(self) -> Path | None:
        """A mixture of experts with as many layers; None with a given target."""
        if self._given:
            return None
        n_layers, width = self.shape.n_layers, max(_BLOCK, self.shape.width // 4 // _BLOCK * _BLOCK)
        path = self._path(f"mixture-{n_layers}x{width}")
        if not path.exists():
            partial = path.with_suffix(".partial")
            make_mixture.write(partial, n_layers, experts=32, used=4, embd=width, ff=width // 2, independent=True)
            partial.replace(path)
        return path

    @cached_property
    def pair(self) -> Pair:
        """For texts."""
        if self._given:
            target, draft = self._given
            assert draft, "texts are measured with a draft"
            return Pair(target, draft)
        shape, n_heads = self.shape, max(self.shape.width // HEAD, LEAST_HEADS)
        n_layers = max(shape.n_layers, LEAST_LAYERS_OF_PAIR)
        target = self._path(f"target-{n_layers}x{shape.width}")
        sizes = {
            "embd": shape.width, "layers": n_layers, "ff": shape.feed_forward, "heads": n_heads,
            "kv-heads": n_heads // GROUP, "head-dim": HEAD, "vocab": _VOCAB,
        }  # fmt: skip
        self._widen(embedded.TARGET, target, sizes, "q4_k_m")
        draft = self._path("draft")
        # llama.cpp's tools want a draft with the target's own vocabulary.
        self._widen(embedded.DRAFT, draft, {"embd": 288, "head-dim": HEAD, "vocab": _VOCAB}, "q8_0")
        return Pair(target, draft)

    def _path(self, name: str) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder / f"{name}.gguf"

    def _widen(self, source: Path, path: Path, sizes: dict[str, int], kind: str) -> None:
        if path.exists():
            return
        options = [word for name, size in sizes.items() for word in (f"--{name}", str(size))]
        if widening.main([str(source), str(path), *options, "--type", kind, "--no-check"]):
            raise widening.WideningError(f"{path} could not be made")

    def _random(self, name: str, shape: Shape) -> Path:
        path = self._path(f"{name}-{shape.n_layers}x{shape.width}")
        if not path.exists():
            partial = path.with_suffix(".partial")
            write_random(partial, shape)
            partial.replace(path)
        return path


def write_random(path: Path, shape: Shape) -> None:
    """Write a llama of random weights in Q4_K, with the embedded pair's tokenizer."""
    rng = np.random.default_rng(0)
    n_heads = shape.width // HEAD
    n_kv = n_heads // GROUP * HEAD
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("random llama")
    writer.add_context_length(N_CTX)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.n_layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(n_heads)
    writer.add_head_count_kv(n_heads // GROUP)
    writer.add_rope_dimension_count(HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    n_vocab = make_mixture.add_tokenizer(writer)
    layer = {
        "attn_q": (shape.width, shape.width), "attn_k": (n_kv, shape.width), "attn_v": (n_kv, shape.width),
        "attn_output": (shape.width, shape.width), "ffn_gate": (shape.feed_forward, shape.width),
        "ffn_up": (shape.feed_forward, shape.width), "ffn_down": (shape.width, shape.feed_forward),
    }  # fmt: skip
    matrices = {"token_embd": (n_vocab, shape.width), "output": (n_vocab, shape.width)}
    matrices |= {f"blk.{i}.{name}": size for i in range(shape.n_layers) for name, size in layer.items()}
    norms = ["output_norm", *(f"blk.{i}.{name}" for i in range(shape.n_layers) for name in ("attn_norm", "ffn_norm"))]
    for name in norms:
        writer.add_tensor_info(f"{name}.weight", (shape.width,), np.dtype(np.float32), 4 * shape.width)
    for name, size in matrices.items():
        n_bytes = size[0] * size[1] // _BLOCK * _BLOCK_BYTES
        # The shape is that of the bytes, from which the writer finds that of the weights.
        in_bytes = (size[0], size[1] // _BLOCK * _BLOCK_BYTES)
        writer.add_tensor_info(f"{name}.weight", in_bytes, np.dtype(np.uint8), n_bytes, raw_dtype=_Q4_K)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for _ in norms:
        writer.write_tensor_data(np.ones(shape.width, np.float32))
    for rows, columns in matrices.values():
        writer.write_tensor_data(random_q4_k(rng, rows, columns))
    writer.close()


def random_q4_k(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """A random matrix, uint8[rows, columns / 256 * 144], whose products have about the scale of their input."""
    blocks = rng.integers(0, 256, (rows * columns // _BLOCK, _BLOCK_BYTES), dtype=np.uint8)
    # A weight is scale * s * q - least * m, with s and m of 6 bits and q of 4, all uniform: the means cancel out where
    # least is 7.5 times scale, and the spread then is about 265 times scale.
    scale = 1 / (265 * np.sqrt(columns))
    blocks[:, :4] = np.frombuffer(np.array([scale, 7.5 * scale], np.float16).tobytes(), np.uint8)
    return blocks.reshape(rows, columns // _BLOCK * _BLOCK_BYTES)
