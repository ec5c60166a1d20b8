"""llama.cpp's parameters for loading a model, with the memory that they point to."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import llama_cpp

from specrun.catalog.gguf_header import EXPERT_PATTERN
from specrun.llama import rpc_servers
from specrun.llama.devices import cpu_buffer_type, offload_handles
from specrun.llama_settings import ALL_LAYERS, LlamaSettings, LoadMode, SplitMode

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

        def goes_on(share: float, _user_data: object) -> bool:
            return progress(share)

        self._goes_on = llama_cpp.llama_progress_callback(goes_on)
        self.struct.progress_callback = self._goes_on
        self.struct.n_gpu_layers = settings.gpu_layers or 0
        if not settings.gpu_layers or rpc_servers.added():
            # With a device, even if it holds no layer, llama.cpp keeps weights in RAM in memory that can neither be
            # re-ordered nor streamed, and large passes multiply them there, which changes a token's last bits. And by
            # itself it would take RPC servers that another model of this process was given.
            handles = offload_handles(settings.rpc) if settings.gpu_layers else []
            self._devices = (ctypes.c_void_p * (len(handles) + 1))(*handles)  # a list ends with NULL
            self.struct.devices = ctypes.cast(self._devices, ctypes.c_void_p)
        self.struct.use_extra_bufts = bool(settings.repack)
        self.struct.load_mode = _LOAD_MODES[settings.load_mode or "auto"]
        # Without a device llama.cpp refuses the split mode `none`, which asks for one.
        self.struct.split_mode = _SPLIT_MODES[settings.split_mode or "layer" if settings.gpu_layers else "layer"]
        self.struct.main_gpu = settings.main_gpu or 0
        self._split = None
        if settings.tensor_split:
            shares = settings.tensor_split[: llama_cpp.llama_max_devices()]
            self._split = (ctypes.c_float * llama_cpp.llama_max_devices())(*shares)
            self.struct.tensor_split = self._split
        patterns = expert_patterns(settings.n_cpu_moe or 0)
        if patterns:
            cpu = cpu_buffer_type()
            overrides = [_Override(pattern.encode(), cpu) for pattern in patterns]
            self._overrides = (_Override * (len(overrides) + 1))(*overrides)  # an empty entry ends the list
            self.struct.tensor_buft_overrides = ctypes.cast(self._overrides, ctypes.c_void_p)


def expert_patterns(n_cpu_moe: int) -> list[str]:
    """Regular expressions for the expert tensors of the first `n_cpu_moe` layers, or of all layers (ALL_LAYERS)."""
    if n_cpu_moe == ALL_LAYERS:
        return [EXPERT_PATTERN]
    return [rf"blk\.{layer}{EXPERT_PATTERN}" for layer in range(n_cpu_moe)]
