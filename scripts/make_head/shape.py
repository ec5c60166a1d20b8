"""The sizes of a head for a target, and the target's weights that it begins with, dequantised."""

from __future__ import annotations

from dataclasses import dataclass

import gguf
import numpy as np
from numpy.typing import NDArray

from specrun.catalog.entries import does
from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.gguf_header import EMBEDDING, OUTPUT
from specrun.catalog.heads import check_no_head
from specrun.errors import ModelFileError, PairError

Floats = NDArray[np.float32]

# A head's layer is one of EAGLE-3 in llama.cpp: plain attention with neighbouring components rotated, and SwiGLU. It
# begins (start.py) with the last layer's attention of these architectures, and with the last layer's feed-forward part
# where that is dense.
_PLAIN_ATTENTION = ("llama",)
_SWIGLU = ("llama", "qwen3")

_LEAST_LAYERS = 4  # of a target: a head reads the states before three of them, of which none is the first
_HEAD_WIDTH = 64  # of attention where the target's is not taken over; common among models
_ATTENTION = ("attn_q", "attn_k", "attn_v", "attn_output")
_FEED_FORWARD = ("ffn_gate", "ffn_up", "ffn_down")


@dataclass(frozen=True)
class HeadShape:
    """Sizes of a head. Its layer, the only one, has as many key/value heads as query heads.

    width: the target's, in numbers of a state. heads, head_width: of attention. own_heads: how many of the attention
    heads begin by looking at their own place. feed_forward: width of the SwiGLU part. target_layers: the states before
    these three layers are read. n_vocab: tokens of the target. rope_base, epsilon, n_ctx: the target's.
    copies_attention, copies_feed_forward: whether these begin as those of the target's last layer.
    """

    width: int
    heads: int
    own_heads: int
    head_width: int
    feed_forward: int
    target_layers: tuple[int, ...]
    n_vocab: int
    rope_base: float
    epsilon: float
    n_ctx: int
    copies_attention: bool
    copies_feed_forward: bool

    @property
    def attention_width(self) -> int:
        """Numbers that all attention heads mix together."""
        return self.heads * self.head_width

    @property
    def state_width(self) -> int:
        """Numbers that the head reads of the target for each token."""
        return len(self.target_layers) * self.width

    def n_computed(self, n_kept: int) -> int:
        """Weights that a pass computes with, of a head with an output of `n_kept` tokens: all but its embedding."""
        attention = (3 * 2 + 1) * self.width * self.attention_width
        return attention + self.width * (self.state_width + 3 * self.feed_forward + n_kept)

    def n_parameters(self, n_kept: int) -> int:
        """All weights of such a head, whose embedding has all tokens of the target."""
        return self.n_computed(n_kept) + self.n_vocab * self.width


def shape_for(file: GgufFile) -> HeadShape:
    """The sizes of the head that is made for a target.

    It reads the states before the second, the middle and the last layer: llama.cpp gives none after the last one.
    Raises PairError for a target that no EAGLE-3 head can draft for, and ModelFileError for a head.
    """
    check_no_head(file)
    name, n_layers = file.path.name, file.n_computed_layers
    if not does("layer_inputs", file.architecture):
        what = f"llama.cpp gives no states of the layers of {file.architecture} models"
        raise PairError(f"no head can be made for {name}: {what}; `specrun models make-draft` makes a draft")
    if n_layers < _LEAST_LAYERS:
        raise PairError(f"no head can be made for {name}: it has {n_layers} layers, and {_LEAST_LAYERS} are needed")
    copies_attention = file.architecture in _PLAIN_ATTENTION and _has(file, _ATTENTION)
    copies_feed_forward = file.architecture in _SWIGLU and _has(file, _FEED_FORWARD)
    n_embd = file.n_embd
    head_width = file.number("attention.key_length", n_embd // max(file.n_heads, 1))
    heads = file.n_heads
    if not copies_attention or file.number("rope.dimension_count", head_width) != head_width:
        copies_attention, head_width = False, min(_HEAD_WIDTH, n_embd)
        heads = n_embd // head_width
    feed_forward = file.by_name[_last(file, "ffn_up")].shape[1] if copies_feed_forward else 2 * n_embd
    base, epsilon = file.value("rope.freq_base"), file.value("attention.layer_norm_rms_epsilon")
    return HeadShape(
        width=n_embd,
        heads=heads,
        own_heads=min(heads // 2, n_embd // head_width),
        head_width=head_width,
        feed_forward=feed_forward,
        target_layers=(1, n_layers // 2, n_layers - 1),
        n_vocab=file.n_vocab,
        rope_base=float(base) if isinstance(base, (int, float)) else 10_000.0,
        epsilon=float(epsilon) if isinstance(epsilon, float) else 1e-5,
        n_ctx=file.n_ctx_train,
        copies_attention=copies_attention,
        copies_feed_forward=copies_feed_forward,
    )


def last_layer(file: GgufFile, shape: HeadShape) -> dict[str, Floats]:
    """The weights of the target's last layer that the head begins with, and its last norm, by short names.

    Matrices are float32[out, in], norms float32[n]. Raises ModelFileError for weights that cannot be dequantised.
    """
    names = [*(("attn_norm", *_ATTENTION) if shape.copies_attention else ())]
    names += ["ffn_norm", *_FEED_FORWARD] if shape.copies_feed_forward else []
    found = {name: weights(file, _last(file, name)) for name in names}
    if "output_norm.weight" in file.by_name:
        found["output_norm"] = weights(file, "output_norm.weight")
    return found


def output_rows(file: GgufFile, tokens: NDArray[np.int64]) -> Floats:
    """float32[n, width]: the rows of the target's output matrix for `tokens`. Raises ModelFileError as `last_layer`."""
    return weights(file, OUTPUT if OUTPUT in file.by_name else EMBEDDING, tokens)


def embedding_rows(file: GgufFile, tokens: NDArray[np.int64]) -> Floats:
    """float32[n, width]: the target's embeddings of `tokens`. Raises ModelFileError as `last_layer`."""
    return weights(file, EMBEDDING, tokens)


def weights(file: GgufFile, name: str, rows: NDArray[np.int64] | None = None) -> Floats:
    """A tensor as float32, of a matrix only these rows if any are given. Raises ModelFileError as `last_layer`."""
    tensor = file.by_name[name]
    by_rows = tensor.shape[-1], tensor.n_bytes // tensor.shape[-1]
    stored = np.asarray(np.memmap(file.shards[tensor.file], np.uint8, "r", tensor.offset, by_rows))
    try:
        values = gguf.quants.dequantize(
            np.asarray(stored if rows is None else stored[rows]), gguf.GGMLQuantizationType[tensor.type]
        )
    except (NotImplementedError, KeyError) as error:
        what = f"{file.path} has {name} in {tensor.type}, which cannot be read here"
        raise ModelFileError(f"{what}; choose another quantization of the target") from error
    return np.array(values, np.float32).reshape(-1 if len(tensor.shape) == 1 else (-1, tensor.shape[0]))


def _has(file: GgufFile, names: tuple[str, ...]) -> bool:
    """Whether the target's last layer has these matrices, without biases."""
    return all(_last(file, name) in file.by_name and _last(file, name, "bias") not in file.by_name for name in names)


def _last(file: GgufFile, name: str, kind: str = "weight") -> str:
    return f"blk.{file.n_computed_layers - 1}.{name}.{kind}"
