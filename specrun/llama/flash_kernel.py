"""Whether GPUs have a kernel of flash attention for a model's heads. No memory is taken and nothing is computed.

llama.cpp's `auto` would ask the same, but with a pass of as many tokens as a context has sequences. With 32 and more,
weights in RAM are copied to the GPU in such a pass, attention of their layers then lies there, too, which counts as a
layer that lacks it, and flash attention is turned off although all devices have it. And where it is turned off so late,
V stays in the order that it needs, and is copied in each pass.
"""

from __future__ import annotations

import ctypes
from functools import cache

from specrun.llama import library
from specrun.llama.devices import offload_handles
from specrun.llama.parameters import CACHE_TYPES
from specrun.llama_settings import CacheType

_F32, _F16 = 0, 1  # enum ggml_type
_CELLS = 256  # as many as llama.cpp reads at least
_MEMORY = 1 << 16  # bytes for a few tensors without data


class _Memory(ctypes.Structure):
    """struct ggml_init_params in ggml.h."""

    _fields_ = (("size", ctypes.c_size_t), ("buffer", ctypes.c_void_p), ("no_data", ctypes.c_bool))


@cache
def gpus_have_it(
    n_heads: int, n_kv_heads: int, size: int, type_k: CacheType, type_v: CacheType, servers: tuple[str, ...] | None
) -> bool:
    """Whether all devices that layers may lie on can compute flash attention for such heads.

    n_heads: a multiple of `n_kv_heads`. size: numbers of a head of K and V, a multiple of the blocks of their types.
    servers: as in `devices.devices`.
    """
    return all(has_it(handle, n_heads, n_kv_heads, size, type_k, type_v) for handle in offload_handles(servers))


def has_it(handle: int, n_heads: int, n_kv_heads: int, size: int, type_k: CacheType, type_v: CacheType) -> bool:
    """The same for one device, a C pointer."""
    new = library.ggml("ggml_new_tensor_4d", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, *[ctypes.c_int64] * 4)
    attention = library.ggml(
        "ggml_flash_attn_ext", ctypes.c_void_p, *[ctypes.c_void_p] * 5, ctypes.c_float, ctypes.c_float, ctypes.c_float
    )
    supports = library.ggml("ggml_backend_dev_supports_op", ctypes.c_bool, ctypes.c_void_p, ctypes.c_void_p)
    context = library.ggml("ggml_init", ctypes.c_void_p, _Memory)(_Memory(_MEMORY, None, True))
    try:
        q = new(context, _F32, size, 1, n_heads, 1)
        k, v = (new(context, CACHE_TYPES[kind], size, _CELLS, n_kv_heads, 1) for kind in (type_k, type_v))
        mask = new(context, _F16, _CELLS, 1, 1, 1)
        return bool(supports(handle, attention(context, q, k, v, mask, size**-0.5, 0.0, 0.0)))
    finally:
        library.ggml("ggml_free", None, ctypes.c_void_p)(context)
