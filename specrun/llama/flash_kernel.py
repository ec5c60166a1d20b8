"""Whether GPUs have a kernel of flash attention for a model's heads. No memory is taken and nothing is computed.

llama.cpp's `auto` would ask the same, but with a pass of as many tokens as a context has sequences. With 32 and more,
weights in RAM are copied to the GPU in such a pass, attention of their layers then lies there, too, which counts as a
layer that lacks it, and flash attention is turned off although all devices have it. And where it is turned off so late,
V stays in the order that it needs, and is copied in each pass.
"""

from __future__ import annotations

from functools import cache, partial

from specrun.llama.devices import offload_handles
from specrun.llama.ggml import InitParams, ggml
from specrun.llama.parameters import CACHE_TYPES
from specrun.llama_settings import CacheType

_F32, _F16 = 0, 1  # enum ggml_type
_CELLS = 256  # as many as llama.cpp reads at least
_MEMORY = 1 << 16  # bytes for a few tensors without data


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
    context = ggml.ggml_init(InitParams(_MEMORY, None, True))
    try:
        new = partial(ggml.ggml_new_tensor_4d, context)
        q = new(_F32, size, 1, n_heads, 1)
        k, v = (new(CACHE_TYPES[kind], size, _CELLS, n_kv_heads, 1) for kind in (type_k, type_v))
        mask = new(_F16, _CELLS, 1, 1, 1)
        attention = ggml.ggml_flash_attn_ext(context, q, k, v, mask, size**-0.5, 0.0, 0.0)
        return bool(ggml.ggml_backend_dev_supports_op(handle, attention))
    finally:
        ggml.ggml_free(context)
