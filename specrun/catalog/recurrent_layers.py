"""Layers with a recurrent state, as in Mamba and in hybrids: which ones a file has, and how large their states are."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from specrun.catalog.architectures import does

if TYPE_CHECKING:
    from specrun.catalog.gguf_file import GgufFile

_FLOAT_BYTES = 4  # llama.cpp keeps recurrent states in float32
_RECURRENT = re.compile(r"blk\.(\d+)\.(ssm_|shortconv\.|time_mix_)")
_ATTENTION = re.compile(r"blk\.(\d+)\.attn_(k|kv_a_mqa|kv_b)\.weight")


def is_untried(file: GgufFile) -> bool:
    """Whether the architecture keeps states in a way that nobody has tried to take back."""
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
