"""Flash attention with layers on a GPU that may have no kernel for a model's heads."""

from __future__ import annotations

from dataclasses import replace

from specrun.catalog.gguf_file import GgufFile
from specrun.engine.kernel_trials import Heads
from specrun.llama import flash_kernel
from specrun.llama_settings import FLOAT_CACHE_TYPES, LlamaSettings

_BLOCK = 32  # numbers that all quantized types of K encode together


def attention_on_gpus(file: GgufFile, settings: LlamaSettings) -> LlamaSettings:
    """The settings for layers in VRAM, without flash attention where a GPU has no kernel of it for the model's heads.

    With it, the CPU would compute attention, after copying K and V of each layer. Unchanged if the user decided it, if
    V is of a type that needs it, for K of a type that llama.cpp refuses for such heads, and for attention of another
    kind, of which nothing is known.
    """
    heads, type_k, type_v = Heads.of(file), settings.type_k or "f16", settings.type_v or "f16"
    if settings.flash_attn or heads is None or type_v not in FLOAT_CACHE_TYPES:
        return settings
    if type_k not in FLOAT_CACHE_TYPES and heads.size % _BLOCK:
        return settings
    if flash_kernel.gpus_have_it(heads.n_heads, heads.n_kv_heads, heads.size, type_k, type_v, settings.rpc):
        return settings
    return replace(settings, flash_attn="off")
