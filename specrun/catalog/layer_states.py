"""What the layers of a model keep of a text: a KV cache, a recurrent state as in Mamba, or both, and its bytes."""

from __future__ import annotations

import re

from specrun.catalog import ggml_types
from specrun.catalog.entries import does
from specrun.catalog.gguf_file import GgufFile

_FLOAT_BYTES = 4  # llama.cpp keeps recurrent states in float32
_RECURRENT = re.compile(r"blk\.(\d+)\.(ssm_|shortconv\.|time_mix_)")
_ATTENTION = re.compile(r"blk\.(\d+)\.attn_(k|kv_a_mqa|kv_b)\.weight")


def is_untried(file: GgufFile) -> bool:
    """Whether nobody has tried yet to roll back the states of this architecture."""
    return does("untried_states", file.architecture)


def recurrent_layers(file: GgufFile) -> frozenset[int]:
    """Indices of the layers that have a recurrent state, by the names of their tensors."""
    return _layers(file, _RECURRENT)


def layers_without_attention(file: GgufFile) -> frozenset[int]:
    """Indices of the recurrent layers that have no attention beside their state, and so no KV cache."""
    return recurrent_layers(file) - _layers(file, _ATTENTION)


def keeps_snapshots(file: GgufFile) -> bool:
    """Whether llama.cpp can keep several states of each pass of this architecture."""
    return does("snapshots", file.architecture) and bool(recurrent_layers(file))


def state_bytes(file: GgufFile) -> tuple[int, ...]:
    """Bytes of one recurrent state of each layer; 0 for a layer without one. As `llama_hparams` computes them."""
    layers = recurrent_layers(file)
    size = _FLOAT_BYTES * _floats(file) if layers else 0
    return tuple(size if layer in layers else 0 for layer in range(file.n_layers))


def kv_bytes_per_token(file: GgufFile, type_k: str = "f16", type_v: str = "f16") -> tuple[int, ...]:
    """Bytes of one token in the KV cache of each layer, with K and V in these ggml types.

    A recurrent layer without attention counts 0, and so does a head that reads the target's cache. A cache that several
    layers share is counted for each. Sliding windows do not make caches smaller, because specrun caches all tokens in
    their layers too (`swa_full`).
    """
    if does("reads_cache", file.architecture):
        return (0,) * file.n_layers
    # With multi-head latent attention (MLA) one cache holds K and V.
    is_mla = file.number("attention.key_length_mla") and file.number("attention.value_length_mla")
    sizes = []
    for count, n_k, n_v in cached_heads(file):
        size = ggml_types.named(type_k).row_bytes(n_k * count)
        sizes.append(size if is_mla else size + ggml_types.named(type_v).row_bytes(n_v * count))
    return tuple(sizes)


def cached_heads(file: GgufFile) -> list[tuple[int, int, int]]:
    """Of each layer the heads that it caches, or that a head's layer reads, and the numbers of one's key and value."""
    without = layers_without_attention(file)
    n_heads = _by_layer(file, "attention.head_count", 0)
    n_kv_heads = _by_layer(file, "attention.head_count_kv", -1)
    default = file.n_embd // n_heads[0] if n_heads and n_heads[0] else 0
    shapes = []
    for layer, (heads, kv_heads) in enumerate(zip(n_heads, n_kv_heads, strict=True)):
        suffix = "_swa" if slides(file, layer) else ""
        n_k, n_v = (
            file.number(f"attention.{part}_length{suffix}", file.number(f"attention.{part}_length", default))
            for part in ("key", "value")
        )
        shapes.append((0 if layer in without else heads if kv_heads < 0 else kv_heads, n_k, n_v))
    return shapes


def _floats(file: GgufFile) -> int:
    number = file.number
    if head := number("wkv.head_size"):
        return file.n_embd * (head + (number("token_shift_count") or 2))
    if taps := number("shortconv.l_cache"):
        return file.n_embd * (taps - 1)
    taps, inner, state = number("ssm.conv_kernel"), number("ssm.inner_size"), number("ssm.state_size")
    if head := number("kda.head_dim"):
        return 3 * max(taps - 1, 0) * file.n_heads * head + head * head * file.n_heads
    return max(taps - 1, 0) * (inner + 2 * number("ssm.group_count") * state) + state * inner


def _layers(file: GgufFile, pattern: re.Pattern[str]) -> frozenset[int]:
    matches = (pattern.match(tensor.name) for tensor in file.tensors)
    return frozenset(int(match[1]) for match in matches if match)


def _by_layer(file: GgufFile, key: str, default: int) -> list[int]:
    """One value per layer, of a key that holds either a single value or a list with one value per layer."""
    value = file.value(key)
    if isinstance(value, list):
        return [int(item) for item in value[: file.n_layers]] + [default] * (file.n_layers - len(value))
    return [value if isinstance(value, int) else default] * file.n_layers


def slides(file: GgufFile, layer: int) -> bool:
    """Whether the file says that this layer has sliding-window attention."""
    pattern = file.value("attention.sliding_window_pattern")
    return isinstance(pattern, list) and layer < len(pattern) and bool(pattern[layer])
