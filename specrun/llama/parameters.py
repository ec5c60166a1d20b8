"""How a model is loaded and how a context is set up: llama.cpp's parameters, the memory that they point to, threads."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import llama_cpp.llama_cpp

from specrun.catalog.gguf_header import EXPERT_PATTERN
from specrun.hardware.cpu import cpu_features, usable_cores
from specrun.llama import devices, library
from specrun.llama.shared_library import InitParams, ggml
from specrun.llama_settings import ALL_LAYERS, UNDECIDED, CacheType, FlashAttention, LlamaSettings, LoadMode, SplitMode

_LOAD_MODES: dict[LoadMode, int] = {
    "auto": llama_cpp.LLAMA_LOAD_MODE_AUTO,
    "none": llama_cpp.LLAMA_LOAD_MODE_NONE,
    "mmap": llama_cpp.LLAMA_LOAD_MODE_MMAP,
    "mlock": llama_cpp.LLAMA_LOAD_MODE_MLOCK,
    "mmap+mlock": llama_cpp.LLAMA_LOAD_MODE_MMAP_MLOCK,
}
_SPLIT_MODES: dict[SplitMode, int] = {
    "none": llama_cpp.LLAMA_SPLIT_MODE_NONE,
    "layer": llama_cpp.LLAMA_SPLIT_MODE_LAYER,
    "row": llama_cpp.LLAMA_SPLIT_MODE_ROW,
}
# enum ggml_type
CACHE_TYPES: dict[CacheType, int] = {
    "f32": 0, "f16": 1, "bf16": 30, "q8_0": 8, "q4_0": 2, "q4_1": 3, "iq4_nl": 20, "q5_0": 6, "q5_1": 7
}  # fmt: skip
_FLASH_ATTENTION: dict[FlashAttention, int] = {
    "on": llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED,
    "off": llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED,
    "auto": llama_cpp.LLAMA_FLASH_ATTN_TYPE_AUTO,
}
_F32, _F16 = 0, 1  # enum ggml_type
_CELLS = 256  # as many as llama.cpp reads at least
_MEMORY = 1 << 16  # bytes for a few tensors without data
_NEW_POOL, _FREE_POOL = b"ggml_threadpool_new", b"ggml_threadpool_free"
_MOST_THREADS = 512  # GGML_MAX_N_THREADS
# A thread sleeps as soon as nothing is left to do. With llama.cpp's default it would look for work for a tenth of a
# second, on the cores on which the other model computes meanwhile.
_NO_POLLING = 0


class _Override(ctypes.Structure):
    """struct llama_model_tensor_buft_override in llama.h."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


class ModelParameters:
    """struct: what llama.cpp takes. It points into this object, which must live as long as the model.

    progress: called while the weights are loaded, with the share that is done. Loading ends when it returns False.
    with_mtp: whether MTP layers are loaded, too.
    """

    def __init__(
        self, settings: LlamaSettings, progress: Callable[[float], bool] = lambda _: True, with_mtp: bool = False
    ) -> None:
        self.struct = llama_cpp.llama_model_default_params()
        self.struct.load_mtp = with_mtp
        self._goes_on = llama_cpp.llama_progress_callback(lambda share, _: progress(share))
        self.struct.progress_callback = self._goes_on
        self.struct.n_gpu_layers = settings.gpu_layers or 0
        if not settings.gpu_layers or devices.has_servers():
            # With a device, even if it holds no layer, llama.cpp keeps weights in RAM where they cannot be streamed,
            # and large passes multiply them there, which changes a token's last bits. And by itself it would take RPC
            # servers that another model of this process was given.
            handles = devices.offload_handles(settings.rpc) if settings.gpu_layers else []
            self._devices = (ctypes.c_void_p * (len(handles) + 1))(*handles)  # a list ends with NULL
            self.struct.devices = ctypes.cast(self._devices, ctypes.c_void_p)
        # In memory from which a GPU copies, which llama.cpp would choose first, weights are not re-ordered.
        self.struct.use_extra_bufts = self.struct.no_host = bool(settings.repack)
        self.struct.load_mode = _LOAD_MODES[settings.load_mode or "auto"]
        # Without a device llama.cpp refuses the split mode `none`, which asks for one.
        self.struct.split_mode = _SPLIT_MODES[settings.split_mode or "layer" if settings.gpu_layers else "layer"]
        self.struct.main_gpu = settings.main_gpu or 0
        if settings.tensor_split:
            shares = settings.tensor_split[: llama_cpp.llama_max_devices()]
            self._split = (ctypes.c_float * llama_cpp.llama_max_devices())(*shares)
            self.struct.tensor_split = self._split
        patterns = expert_patterns(settings.n_cpu_moe or 0)
        if patterns:
            overrides = [_Override(pattern.encode(), ggml.ggml_backend_cpu_buffer_type()) for pattern in patterns]
            self._overrides = (_Override * (len(overrides) + 1))(*overrides)  # an empty entry ends the list
            self.struct.tensor_buft_overrides = ctypes.cast(self._overrides, ctypes.c_void_p)


def expert_patterns(n_cpu_moe: int) -> list[str]:
    """Regular expressions for the expert tensors of the first `n_cpu_moe` layers, or of all layers (ALL_LAYERS)."""
    if n_cpu_moe == ALL_LAYERS:
        return [EXPERT_PATTERN]
    return [rf"blk\.{layer}{EXPERT_PATTERN}" for layer in range(n_cpu_moe)]


@dataclass(frozen=True)
class ContextConfig:
    """How a context is set up."""

    n_ctx: int  # cells of the KV cache
    n_seq_max: int  # sequence ids, so the most leaf paths of a tree
    n_batch: int  # most tokens of one pass
    n_outputs: int  # most rows of logits of one pass
    settings: LlamaSettings = UNDECIDED  # threads, sizes of prompt passes, flash attention, cache types
    n_snapshots: int = 0  # recurrent states that are kept of a pass, where the architecture can
    slots: tuple[int, ...] = ()  # where several texts share the context: most leaf paths of the trees of each

    @property
    def n_call(self) -> int:
        """Most tokens that llama.cpp gets at once: the tokens of several prompt passes, if the settings ask for it.

        llama.cpp cuts them every `n_batch` tokens. Where that is more than a pass over a prompt has, because trees need
        the room, it gets one pass at a time: which tokens share a pass must not depend on the plan.
        """
        is_cut_alike = self.n_batch == self.settings.prompt_pass
        return max(self.n_batch, (self.settings.batch_size or 0) // self.n_batch * self.n_batch if is_cut_alike else 0)


def context_parameters(config: ContextConfig) -> Any:
    """What llama.cpp takes, for a model without a head whose weights are not streamed."""
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = config.n_ctx
    params.n_batch, params.n_ubatch = config.n_call, config.n_batch
    params.n_seq_max = config.n_seq_max
    params.n_rs_seq = config.n_snapshots
    # llama.cpp reserves memory for this many rows of logits; n_batch rows would be 311 MB with 152k tokens.
    params.n_outputs_max = max(config.n_outputs, config.n_seq_max)
    settings = config.settings
    params.n_threads = settings.threads or usable_cores()
    params.n_threads_batch = settings.threads_batch or params.n_threads
    params.type_k = CACHE_TYPES[settings.type_k or "f16"]
    params.type_v = CACHE_TYPES[settings.type_v or "f16"]
    params.flash_attn_type = _FLASH_ATTENTION[settings.flash_attn or "on"]
    params.op_offload = settings.op_offload is not False
    params.kv_unified = True
    params.swa_full = True  # a branch may need cells that a sliding window would drop
    params.no_perf = True
    return params


@cache
def gpus_have_flash(
    n_heads: int, n_kv_heads: int, size: int, type_k: CacheType, type_v: CacheType, servers: tuple[str, ...] | None
) -> bool:
    """Whether all devices that layers may lie on can compute flash attention for such heads. Nothing is computed.

    llama.cpp's `auto` would ask the same, but with a pass of as many tokens as a context has sequences. With 32 and
    more, weights in RAM are copied to the GPU in such a pass, attention of their layers then lies there, too, which
    counts as a layer that lacks it, and flash attention is turned off although all devices have it. And where it is
    turned off so late, V stays in the order that it needs, and is copied in each pass.

    n_heads: a multiple of `n_kv_heads`. size: numbers of a head of K and V, a multiple of the blocks of their types.
    servers: as in `devices.devices`.
    """
    handles = devices.offload_handles(servers)
    return all(has_flash(handle, n_heads, n_kv_heads, size, type_k, type_v) for handle in handles)


def has_flash(handle: int, n_heads: int, n_kv_heads: int, size: int, type_k: CacheType, type_v: CacheType) -> bool:
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


class _PoolParameters(ctypes.Structure):
    """struct ggml_threadpool_params in ggml.h."""

    _fields_ = (
        ("cpumask", ctypes.c_bool * _MOST_THREADS),
        ("n_threads", ctypes.c_int),
        ("prio", ctypes.c_int),
        ("poll", ctypes.c_uint32),
        ("strict_cpu", ctypes.c_bool),
        ("paused", ctypes.c_bool),
    )


class ThreadPool(library.Closing):
    """Worker threads that a context keeps, for builds of llama.cpp without OpenMP. Close it after the context.

    Such a build otherwise makes the threads anew for each part of a pass that the CPU computes, which is about one a
    layer where a GPU has the others. OpenMP keeps its threads by itself, and takes none of a pool. A pool may have more
    threads than a pass asks for, and how a pass is divided does not depend on who computes, so the bits stay the same.
    """

    def __init__(self, context: Any, n_threads: int) -> None:
        """context: the C pointer. n_threads: the most that a pass will ask for."""
        parameters = _PoolParameters()
        ggml.ggml_threadpool_params_init(ctypes.byref(parameters), n_threads)
        parameters.poll = _NO_POLLING
        self._handle = _pool_function(_NEW_POOL, ctypes.c_void_p)(ctypes.byref(parameters))
        attach = llama_cpp.llama_cpp._lib.llama_attach_threadpool
        attach.restype, attach.argtypes = None, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        attach(context, self._handle, self._handle)

    def close(self) -> None:
        """End the threads."""
        if self._handle:
            _pool_function(_FREE_POOL, None)(self._handle)
            self._handle = None


@cache
def needs_pool() -> bool:
    """Whether this build of llama.cpp has no OpenMP, which would keep the threads, and can make pools instead."""
    has_openmp = "OPENMP" in cpu_features(devices.system_info())
    return not has_openmp and all(_pool_function(name, None) for name in (_NEW_POOL, _FREE_POOL))


def _pool_function(name: bytes, result: Any) -> Any:
    """A function of the CPU backend, whose library may be another than ggml's, with a pointer as its argument."""
    address = ggml.ggml_backend_reg_get_proc_address(ggml.ggml_backend_reg_by_name(b"CPU"), name)
    return ctypes.CFUNCTYPE(result, ctypes.c_void_p)(address) if address else None
