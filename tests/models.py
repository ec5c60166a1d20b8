"""Small GGUF files for tests: real files that the real llama.cpp loads, made in milliseconds.

    random_llama     random weights, the demo pair's tokenizer; never ends a text by itself
    scripted_llama   writes a text that the test chose, then ends or begins again
    random_gemma3    a model with sliding-window attention
    random_qwen3_moe a mixture of experts
    random_mamba     a recurrent model; `tests.hybrids` has those with attention beside recurrent layers
    random_bert      an embedding model
    random_t5        an encoder-decoder model
    split            a model in several files
    edited           a copy of a file with other metadata
    truncated        the first bytes of a file
    wide_target      the embedded target in any of llama.cpp's types
    wide_heads       the embedded target with heads of the width that real models have

Every function writes `path` and returns it. `Reader` reads such a file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from scripts.widening.any_model import AnyWiderModel
from specrun.catalog import embedded
from specrun.llama.quantizer import quantize

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Metadata = Mapping[str, Any]

TOKENS = "tokenizer.ggml.tokens"
TOKEN_TYPES = "tokenizer.ggml.token_type"
CHAT_TEMPLATE = "tokenizer.chat_template"

_F32 = gguf.GGMLQuantizationType.F32
_ARRAY, _STRING = int(gguf.GGUFValueType.ARRAY), int(gguf.GGUFValueType.STRING)
_NORM_EPSILON = 1e-5
_SCRIPT_SEED = 1
# Names of llama.cpp's quantize tool -> llama_ftype
_FILE_TYPES = {
    "f16": 1, "q4_0": 2, "q8_0": 7, "q3_k_m": 12, "q4_k_m": 15, "q5_k_m": 17, "q6_k": 18, "iq4_nl": 25, "iq4_xs": 30,
    "bf16": 32, "mxfp4": 38,
}  # fmt: skip


class Reader(gguf.GGUFReader):
    """gguf's reader, four times as fast: it makes thousands of arrays of the type that `data` has.

    A memory map costs much more to slice than a plain array that looks at the same bytes.
    """

    @property
    def data(self) -> Bytes:
        """The bytes of the file, which stays mapped."""
        return self._bytes

    @data.setter
    def data(self, mapped: Bytes) -> None:
        self._bytes = np.asarray(mapped)

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[Any]]:
        """An array at once, of which a vocabulary has thousands of parts: views of each text's bytes, or numbers."""
        if raw_type != _ARRAY or self.byte_order != "I":
            return super()._get_field_parts(orig_offs, raw_type)
        kind, length = self._get(orig_offs, np.uint32), self._get(orig_offs + 4, np.uint64)
        parts: list[Any] = [kind, length]
        at, step = orig_offs + 12, 1
        if kind[0] == _STRING:
            view, step = memoryview(self._bytes), 2
            for _ in range(int(length[0])):
                end = at + 8 + int.from_bytes(view[at : at + 8], "little")
                parts += (view[at : at + 8], view[at + 8 : end])
                at = end
        else:
            numbers = self._get(at, self.gguf_scalar_to_np[gguf.GGUFValueType(kind[0])], length[0])
            parts += (numbers[i : i + 1] for i in range(len(numbers)))
            at += numbers.nbytes
        kinds = [gguf.GGUFValueType.ARRAY, gguf.GGUFValueType(kind[0])]
        return at - orig_offs, parts, list(range(1 + step, len(parts), step)), kinds


class Writer(gguf.GGUFWriter):
    """gguf's writer, which packs the texts of a vocabulary at once."""

    def _pack_val(
        self, val: Any, vtype: gguf.GGUFValueType, add_vtype: bool, sub_type: gguf.GGUFValueType | None = None
    ) -> bytes:
        if sub_type is gguf.GGUFValueType.INT32:
            values = np.array(val, "<i4").tobytes()
        elif sub_type is gguf.GGUFValueType.STRING:
            texts = [text.encode() if isinstance(text, str) else text for text in val]
            values = b"".join(len(text).to_bytes(8, "little") + text for text in texts)
        else:
            return super()._pack_val(val, vtype, add_vtype, sub_type)
        head = [vtype, sub_type] if add_vtype else [sub_type]
        return b"".join(int(one).to_bytes(4, "little") for one in head) + len(val).to_bytes(8, "little") + values


def random_llama(
    path: Path,
    *,
    n_embd: int = 64,
    n_layer: int = 2,
    n_head: int = 2,
    n_head_kv: int = 1,
    n_ff: int = 128,
    n_ctx: int = 512,
    n_silent: int = 0,
    vocab_extra: int = 0,
    seed: int = 0,
    weight_type: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.Q8_0,
    metadata: Metadata | None = None,
    with_tensors: bool = True,
) -> Path:
    """A llama with random weights and the demo pair's tokenizer.

    n_silent: further layers that add nothing. vocab_extra: unused tokens added at the end, whose logits are always 0.
    Both leave the logits of the other tokens as they are.
    weight_type: of the matrices; with Q8_0, sizes must be multiples of 32.
    metadata: keys set on top (None removes one). with_tensors False makes a vocabulary-only file.
    The end-of-text token's logit is always 0, so that neither greedy nor top-k sampling ever ends a text.
    """
    rng = np.random.default_rng(seed)
    values = tokenizer(vocab_extra) | _llama_shape(n_embd, n_layer + n_silent, n_head, n_head_kv, n_ff, n_ctx)
    n_vocab = len(values[TOKENS]) - vocab_extra
    n_kv = n_embd // n_head * n_head_kv
    output = random_matrix(rng, n_vocab, n_embd)
    output[values["tokenizer.ggml.eos_token_id"]] = 0
    tensors = {
        "token_embd.weight": np.pad(random_matrix(rng, n_vocab, n_embd), ((0, vocab_extra), (0, 0)), mode="wrap"),
        "output_norm.weight": np.full(n_embd, 4, np.float32),
        "output.weight": np.pad(output, ((0, vocab_extra), (0, 0))),
    }
    for layer in range(n_layer):
        tensors |= _llama_layer(f"blk.{layer}", n_embd, n_kv, n_ff, lambda *shape: random_matrix(rng, *shape))
    for layer in range(n_layer, n_layer + n_silent):
        tensors |= _llama_layer(f"blk.{layer}", n_embd, n_kv, n_ff, lambda *shape: np.zeros(shape, np.float32))
    return write_model(path, "llama", values | dict(metadata or {}), tensors if with_tensors else {}, weight_type)


def scripted_llama(
    path: Path,
    pieces: Sequence[bytes],
    *,
    others: Sequence[Sequence[bytes]] = (),
    repeat: bool = False,
    n_ctx: int = 512,
    n_layer: int = 1,
    metadata: Metadata | None = None,
) -> Path:
    """A llama that answers every prompt with `pieces`, one token each, then ends its text, or begins again if `repeat`.

    A prompt that ends with the first piece of one of `others` is answered with the rest of that; else it must not end
    with a piece. All pieces must differ from each other; they need not be valid UTF-8 by themselves. Greedy or sampled,
    the text is the same. The layers add nothing: a token's embedding alone decides what follows it; n_layer makes the
    file larger.
    """
    scripts = [pieces, *others]
    assert len({*chain(*scripts)}) == sum(map(len, scripts)), "every piece is a token of its own"
    n_embd = 64
    values = tokenizer()
    ids = [[_add_token(values, piece) for piece in script] for script in scripts]
    end = values["tokenizer.ggml.eos_token_id"]
    n_vocab = len(values[TOKENS])
    # The first dimension is the same for all tokens and means "the script begins"; the others tell tokens apart.
    own = np.random.default_rng(_SCRIPT_SEED).standard_normal((n_vocab, n_embd - 1)).astype(np.float32)
    own /= np.linalg.norm(own, axis=1, keepdims=True)
    embedding = np.concatenate([np.full((n_vocab, 1), 0.5, np.float32), own], axis=1)
    output = np.zeros((n_vocab, n_embd), np.float32)
    output[ids[0][0], 0] = 48
    for script in ids:
        output[script[1:], 1:] = 32 * own[script[:-1]]
    if not repeat:
        output[end, 1:] = 32 * np.linalg.pinv(own[[script[-1] for script in ids]]).sum(axis=1)
    tensors = {
        "token_embd.weight": embedding,
        "output_norm.weight": np.ones(n_embd, np.float32),
        "output.weight": output,
    }
    for layer in range(n_layer):
        tensors |= _llama_layer(f"blk.{layer}", n_embd, n_embd, 64, lambda *shape: np.zeros(shape, np.float32))
    values |= _llama_shape(n_embd, n_layer, 1, 1, 64, n_ctx) | {"general.name": "script"}
    return write_model(path, "llama", values | dict(metadata or {}), tensors, _F32)


def random_gemma3(path: Path, *, window: int, seed: int = 0) -> Path:
    """A Gemma 3 with random weights: five layers in six see only the last `window` tokens."""
    rng = np.random.default_rng(seed)
    n_embd, n_head_dim, n_ff, n_layer = 64, 32, 128, 6
    values = tokenizer() | {
        "general.name": "random gemma3",
        "gemma3.context_length": 512,
        "gemma3.embedding_length": n_embd,
        "gemma3.block_count": n_layer,
        "gemma3.feed_forward_length": n_ff,
        "gemma3.attention.head_count": 2,
        "gemma3.attention.head_count_kv": 1,
        "gemma3.attention.key_length": n_head_dim,
        "gemma3.attention.value_length": n_head_dim,
        "gemma3.attention.sliding_window": window,
        "gemma3.attention.layer_norm_rms_epsilon": _NORM_EPSILON,
    }
    tensors = {
        "token_embd.weight": random_matrix(rng, len(values[TOKENS]), n_embd),
        "output_norm.weight": np.full(n_embd, 4, np.float32),
    }
    for layer in range(n_layer):
        block = f"blk.{layer}"
        tensors |= _llama_layer(block, n_embd, n_head_dim, n_ff, lambda *shape: random_matrix(rng, *shape))
        tensors |= {
            f"{block}.{name}.weight": np.ones(n_embd, np.float32) for name in ("post_attention_norm", "post_ffw_norm")
        }
        tensors |= {
            f"{block}.{name}.weight": np.ones(n_head_dim, np.float32) for name in ("attn_q_norm", "attn_k_norm")
        }
    return write_model(path, "gemma3", values, tensors, gguf.GGMLQuantizationType.Q8_0)


def random_qwen3_moe(path: Path, *, n_layer: int = 2, n_expert: int = 4, n_ff: int = 32, seed: int = 0) -> Path:
    """A mixture of experts with random weights: of `n_expert` experts, each `n_ff` wide, a token uses two."""
    rng = np.random.default_rng(seed)
    n_embd, n_head_dim = 64, 32
    values = tokenizer() | {
        "general.name": "random moe",
        "qwen3moe.context_length": 512,
        "qwen3moe.embedding_length": n_embd,
        "qwen3moe.block_count": n_layer,
        "qwen3moe.feed_forward_length": n_ff,
        "qwen3moe.expert_feed_forward_length": n_ff,
        "qwen3moe.expert_count": n_expert,
        "qwen3moe.expert_used_count": 2,
        "qwen3moe.attention.head_count": 2,
        "qwen3moe.attention.head_count_kv": 1,
        "qwen3moe.attention.key_length": n_head_dim,
        "qwen3moe.attention.value_length": n_head_dim,
        "qwen3moe.attention.layer_norm_rms_epsilon": _NORM_EPSILON,
    }
    n_vocab = len(values[TOKENS])
    tensors = {
        "token_embd.weight": random_matrix(rng, n_vocab, n_embd),
        "output_norm.weight": np.full(n_embd, 4, np.float32),
        "output.weight": random_matrix(rng, n_vocab, n_embd),
    }
    for layer in range(n_layer):
        block = f"blk.{layer}"
        tensors |= {
            f"{block}.{name}.weight": np.ones(n, np.float32)
            for name, n in (
                ("attn_norm", n_embd),
                ("ffn_norm", n_embd),
                ("attn_q_norm", n_head_dim),
                ("attn_k_norm", n_head_dim),
            )
        }
        for name, n_out in (("attn_q", 2 * n_head_dim), ("attn_k", n_head_dim), ("attn_v", n_head_dim)):
            tensors[f"{block}.{name}.weight"] = random_matrix(rng, n_out, n_embd)
        tensors[f"{block}.attn_output.weight"] = random_matrix(rng, n_embd, 2 * n_head_dim)
        tensors[f"{block}.ffn_gate_inp.weight"] = random_matrix(rng, n_expert, n_embd)
        for name, n_out, n_in in (("gate", n_ff, n_embd), ("up", n_ff, n_embd), ("down", n_embd, n_ff)):
            experts = [random_matrix(rng, n_out, n_in) for _ in range(n_expert)]
            tensors[f"{block}.ffn_{name}_exps.weight"] = np.stack(experts)
    return write_model(path, "qwen3moe", values, tensors, _F32)


def random_mamba(
    path: Path,
    *,
    n_layer: int = 1,
    seed: int = 0,
    weight_type: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    metadata: Metadata | None = None,
) -> Path:
    """A recurrent model with random weights and the demo pair's tokenizer; n_layer makes it larger."""
    rng = np.random.default_rng(seed)
    n_embd, n_inner, n_state, n_conv, n_rank = 64, 128, 16, 4, 32
    values = tokenizer() | {
        "general.name": "random mamba",
        "mamba.context_length": 512,
        "mamba.embedding_length": n_embd,
        "mamba.feed_forward_length": 0,
        "mamba.attention.head_count": 0,
        "mamba.block_count": n_layer,
        "mamba.ssm.conv_kernel": n_conv,
        "mamba.ssm.inner_size": n_inner,
        "mamba.ssm.state_size": n_state,
        "mamba.ssm.time_step_rank": n_rank,
        "mamba.attention.layer_norm_rms_epsilon": _NORM_EPSILON,
    }
    n_vocab = len(values[TOKENS])
    output = random_matrix(rng, n_vocab, n_embd)
    output[values["tokenizer.ggml.eos_token_id"]] = 0
    tensors = {
        "token_embd.weight": random_matrix(rng, n_vocab, n_embd),
        "output_norm.weight": np.full(n_embd, 4, np.float32),
        "output.weight": output,
    }
    for layer in range(n_layer):
        tensors |= {
            f"blk.{layer}.attn_norm.weight": np.ones(n_embd, np.float32),
            f"blk.{layer}.ssm_in.weight": random_matrix(rng, 2 * n_inner, n_embd),
            f"blk.{layer}.ssm_conv1d.weight": random_matrix(rng, n_inner, n_conv),
            f"blk.{layer}.ssm_conv1d.bias": np.zeros(n_inner, np.float32),
            f"blk.{layer}.ssm_x.weight": random_matrix(rng, n_rank + 2 * n_state, n_inner),
            f"blk.{layer}.ssm_dt.weight": random_matrix(rng, n_inner, n_rank),
            f"blk.{layer}.ssm_dt.bias": np.zeros(n_inner, np.float32),
            f"blk.{layer}.ssm_a": -np.ones((n_inner, n_state), np.float32),
            f"blk.{layer}.ssm_d": np.ones(n_inner, np.float32),
            f"blk.{layer}.ssm_out.weight": random_matrix(rng, n_embd, n_inner),
        }
    return write_model(path, "mamba", values | dict(metadata or {}), tensors, weight_type, plain=("conv1d", "ssm_a"))


def random_bert(path: Path) -> Path:
    """An embedding model: it reads in both directions and can write nothing."""
    rng = np.random.default_rng(0)
    n_embd, n_ff, n_ctx = 64, 128, 128
    values = tokenizer() | {
        "bert.context_length": n_ctx,
        "bert.embedding_length": n_embd,
        "bert.feed_forward_length": n_ff,
        "bert.block_count": 1,
        "bert.attention.head_count": 2,
        "bert.attention.layer_norm_epsilon": 1e-12,
        "bert.attention.causal": False,
        "bert.pooling_type": 1,
        "tokenizer.ggml.token_type_count": 2,
    }
    tensors = {
        "token_embd.weight": random_matrix(rng, len(values[TOKENS]), n_embd),
        "token_types.weight": random_matrix(rng, 2, n_embd),
        "position_embd.weight": random_matrix(rng, n_ctx, n_embd),
    }
    matrices = {"attn_q": n_embd, "attn_k": n_embd, "attn_v": n_embd, "attn_output": n_embd, "ffn_up": n_ff}
    for name, n_out in matrices.items():
        tensors[f"blk.0.{name}.weight"] = random_matrix(rng, n_out, n_embd)
        tensors[f"blk.0.{name}.bias"] = np.zeros(n_out, np.float32)
    tensors["blk.0.ffn_down.weight"] = random_matrix(rng, n_embd, n_ff)
    tensors["blk.0.ffn_down.bias"] = np.zeros(n_embd, np.float32)
    for name in ("token_embd_norm", "blk.0.attn_output_norm", "blk.0.layer_output_norm"):
        tensors[f"{name}.weight"] = np.ones(n_embd, np.float32)
        tensors[f"{name}.bias"] = np.zeros(n_embd, np.float32)
    return write_model(path, "bert", values, tensors, _F32)


def random_t5(path: Path) -> Path:
    """An encoder-decoder model."""
    rng = np.random.default_rng(0)
    n_embd, n_ff, n_head, n_buckets = 64, 128, 2, 32
    values = tokenizer() | {
        "t5.context_length": 128,
        "t5.embedding_length": n_embd,
        "t5.feed_forward_length": n_ff,
        "t5.block_count": 1,
        "t5.attention.head_count": n_head,
        "t5.attention.key_length": n_embd // n_head,
        "t5.attention.value_length": n_embd // n_head,
        "t5.attention.layer_norm_epsilon": 1e-6,
        "t5.attention.layer_norm_rms_epsilon": 1e-6,
        "t5.attention.relative_buckets_count": n_buckets,
        "t5.decoder_start_token_id": 0,
    }
    tensors = {"token_embd.weight": random_matrix(rng, len(values[TOKENS]), n_embd)}
    for side, attentions in (("enc", ["attn"]), ("dec", ["attn", "cross_attn"])):
        block = f"{side}.blk.0"
        tensors[f"{side}.output_norm.weight"] = np.ones(n_embd, np.float32)
        tensors[f"{block}.attn_rel_b.weight"] = random_matrix(rng, n_buckets, n_head)
        tensors[f"{block}.ffn_norm.weight"] = np.ones(n_embd, np.float32)
        tensors[f"{block}.ffn_up.weight"] = random_matrix(rng, n_ff, n_embd)
        tensors[f"{block}.ffn_gate.weight"] = random_matrix(rng, n_ff, n_embd)
        tensors[f"{block}.ffn_down.weight"] = random_matrix(rng, n_embd, n_ff)
        for attention in attentions:
            tensors[f"{block}.{attention}_norm.weight"] = np.ones(n_embd, np.float32)
            for part in "qkvo":
                tensors[f"{block}.{attention}_{part}.weight"] = random_matrix(rng, n_embd, n_embd)
    return write_model(path, "t5", values, tensors, _F32)


def split(path: Path, source: Path, n_shards: int) -> Path:
    """The model of `source` in files named as llama.cpp's gguf-split does: `path` with -00001-of-... in its name.

    Returns the first.
    """
    reader = Reader(source)
    values = metadata_of(reader)
    architecture = values.pop("general.architecture")
    groups = [list(group) for group in np.array_split(np.arange(len(reader.tensors)), n_shards)]
    shards = [path.with_name(f"{path.stem}-{i:05d}-of-{n_shards:05d}.gguf") for i in range(1, n_shards + 1)]
    for number, (shard, group) in enumerate(zip(shards, groups, strict=True)):
        writer = gguf.GGUFWriter(shard, architecture)
        if number == 0:
            _add_metadata(writer, values)
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", n_shards)
        writer.add_int32("split.tensors.count", len(reader.tensors))
        for tensor in (reader.tensors[i] for i in group):
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        _finish(writer, shard)
    return shards[0]


def edited(path: Path, source: Path, metadata: Metadata) -> Path:
    """A copy of `source` with the keys of `metadata` set, or removed where the value is None; tensors as they are."""
    reader = Reader(source)
    return write_tensors(path, metadata_of(reader) | dict(metadata), reader.tensors)


def write_tensors(path: Path, values: dict[str, Any], tensors: Sequence[gguf.ReaderTensor]) -> Path:
    """A file of tensors that were read from another one, as they are there."""
    writer = Writer(path, values.pop("general.architecture"))
    _add_metadata(writer, values)
    for tensor in tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    return _finish(writer, path)


def truncated(path: Path, source: Path, n_bytes: int) -> Path:
    """The first `n_bytes` of `source`, as an interrupted download leaves them; negative counts from the end."""
    path.write_bytes(source.read_bytes()[:n_bytes])
    return path


def tensor_data_offset(path: Path) -> int:
    """Where the header and metadata of a GGUF file end and its weights begin, in bytes."""
    return int(Reader(path).data_offset)


# --- parts ---------------------------------------------------------------------------------------------------------


def random_matrix(rng: np.random.Generator, n_out: int, n_in: int) -> Floats:
    return (rng.standard_normal((n_out, n_in)) / np.sqrt(n_in)).astype(np.float32)


def _llama_shape(n_embd: int, n_layer: int, n_head: int, n_head_kv: int, n_ff: int, n_ctx: int) -> dict[str, Any]:
    return {
        "general.name": "random llama",
        "llama.context_length": n_ctx,
        "llama.embedding_length": n_embd,
        "llama.block_count": n_layer,
        "llama.feed_forward_length": n_ff,
        "llama.attention.head_count": n_head,
        "llama.attention.head_count_kv": n_head_kv,
        "llama.rope.dimension_count": n_embd // n_head,
        "llama.attention.layer_norm_rms_epsilon": _NORM_EPSILON,
    }


def _llama_layer(
    block: str, n_embd: int, n_kv: int, n_ff: int, matrix: Callable[[int, int], Floats]
) -> dict[str, Floats]:
    return {
        f"{block}.attn_norm.weight": np.ones(n_embd, np.float32),
        f"{block}.attn_q.weight": matrix(n_embd, n_embd),
        f"{block}.attn_k.weight": matrix(n_kv, n_embd),
        f"{block}.attn_v.weight": matrix(n_kv, n_embd),
        f"{block}.attn_output.weight": matrix(n_embd, n_embd),
        f"{block}.ffn_norm.weight": np.ones(n_embd, np.float32),
        f"{block}.ffn_gate.weight": matrix(n_ff, n_embd),
        f"{block}.ffn_up.weight": matrix(n_ff, n_embd),
        f"{block}.ffn_down.weight": matrix(n_embd, n_ff),
    }


def tokenizer(vocab_extra: int = 0) -> dict[str, Any]:
    """The demo pair's tokenizer and chat template, as metadata."""
    values = {key: list(value) if isinstance(value, list) else value for key, value in _demo_tokenizer().items()}
    for i in range(vocab_extra):
        values[TOKENS].append(f"<unused_{i}>")
        values[TOKEN_TYPES].append(int(gguf.TokenType.UNUSED))
    return values


@cache
def _demo_tokenizer() -> dict[str, Any]:
    return {key: v for key, v in metadata_of(Reader(embedded.DRAFT)).items() if key.startswith("tokenizer.")}


def _add_token(values: dict[str, Any], piece: bytes) -> int:
    """Id of the token that stands for `piece`, which is added to the vocabulary if it is missing."""
    text = "".join(_BYTE_TO_TEXT[byte] for byte in piece)
    if text not in values[TOKENS]:
        values[TOKENS].append(text)
        values[TOKEN_TYPES].append(int(gguf.TokenType.NORMAL))
    return values[TOKENS].index(text)


def _byte_to_text() -> dict[int, str]:
    """GPT-2's alphabet: a printable character for every byte."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


_BYTE_TO_TEXT = _byte_to_text()


def metadata_of(reader: gguf.GGUFReader) -> dict[str, Any]:
    return {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}


def _add_metadata(writer: gguf.GGUFWriter, values: Metadata) -> None:
    for key, value in values.items():
        if value is not None:
            writer.add_key_value(key, value, *_value_type(value))


def _value_type(value: Any) -> tuple[gguf.GGUFValueType, gguf.GGUFValueType | None]:
    match value:
        case bool():
            return gguf.GGUFValueType.BOOL, None
        case int():
            return gguf.GGUFValueType.UINT32, None
        case float():
            return gguf.GGUFValueType.FLOAT32, None
        case str():
            return gguf.GGUFValueType.STRING, None
        case [int(), *_]:
            return gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.INT32
        case _:
            return gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.STRING


def write_model(
    path: Path,
    architecture: str,
    metadata: Metadata,
    tensors: Mapping[str, Floats],
    weight_type: gguf.GGMLQuantizationType,
    plain: Sequence[str] = (),
) -> Path:
    """Matrices get `weight_type`, except those with one of `plain` in their names."""
    writer = Writer(path, architecture)
    _add_metadata(writer, metadata)
    for name, values in tensors.items():
        if values.ndim == 1 or weight_type == _F32 or any(part in name for part in plain):
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, gguf.quants.quantize(values, weight_type), raw_dtype=weight_type)
    return _finish(writer, path)


def _finish(writer: Writer, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def light_draft(folder: Path) -> Path:
    """The embedded draft in Q4_0, which is smaller than the embedded target in any type; made only once."""
    path = folder / "light-draft.gguf"
    if not path.exists():
        quantize(str(embedded.DRAFT), str(path), _FILE_TYPES["q4_0"], [], 1)
    return path


def wide_target(folder: Path, kind: str) -> Path:
    """The embedded target with feed-forward layers of 1024, as llama.cpp quantizes it, in `folder`; made only once.

    K-quants and i-quants need rows of a multiple of 256 weights. kind: a key of `_FILE_TYPES`.
    """
    path, wide = folder / f"wide-{kind}.gguf", folder / "wide.gguf"
    if not wide.exists():
        AnyWiderModel(embedded.TARGET, {"ff": 1024}, "f16").write(wide, lambda _: None)
    if not path.exists():
        quantize(str(wide), str(path), _FILE_TYPES[kind], [], 1)
    return path


def wide_heads(folder: Path, head_dim: int) -> Path:
    """The embedded target with heads of 64 or 128 instead of 32, in `folder`; made only once. Its draft fits it."""
    path = folder / f"heads-of-{head_dim}.gguf"
    if not path.exists():
        AnyWiderModel(embedded.TARGET, {"head_dim": head_dim}, "q8_0").write(path, lambda _: None)
    return path
