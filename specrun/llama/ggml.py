"""ggml's functions that llama-cpp-python does not declare: `ggml` is its library, whose functions here get types."""

from __future__ import annotations

import ctypes
from ctypes import c_bool, c_char_p, c_float, c_int, c_int64, c_size_t, c_void_p
from typing import Any

from llama_cpp._ggml import libggml


class InitParams(ctypes.Structure):
    """struct ggml_init_params in ggml.h."""

    _fields_ = (("size", c_size_t), ("buffer", c_void_p), ("no_data", c_bool))


# Result and arguments. Most pointers are to devices, backends (registries), buffers, tensors or contexts.
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "ggml_backend_buffer_get_type": (c_void_p, c_void_p),
    "ggml_backend_buft_name": (c_char_p, c_void_p),
    "ggml_backend_cpu_buffer_type": (c_void_p,),
    "ggml_backend_dev_backend_reg": (c_void_p, c_void_p),
    "ggml_backend_dev_count": (c_size_t,),
    "ggml_backend_dev_description": (c_char_p, c_void_p),
    "ggml_backend_dev_get": (c_void_p, c_size_t),
    "ggml_backend_dev_get_props": (None, c_void_p, c_void_p),
    "ggml_backend_dev_supports_op": (c_bool, c_void_p, c_void_p),
    "ggml_backend_reg_by_name": (c_void_p, c_char_p),
    "ggml_backend_reg_count": (c_size_t,),
    "ggml_backend_reg_get": (c_void_p, c_size_t),
    "ggml_backend_reg_get_proc_address": (c_void_p, c_void_p, c_char_p),
    "ggml_backend_reg_name": (c_char_p, c_void_p),
    "ggml_backend_register": (None, c_void_p),
    "ggml_flash_attn_ext": (c_void_p, *[c_void_p] * 5, *[c_float] * 3),
    "ggml_free": (None, c_void_p),
    "ggml_get_data": (c_void_p, c_void_p),
    "ggml_get_name": (c_char_p, c_void_p),
    "ggml_init": (c_void_p, InitParams),
    "ggml_nbytes": (c_size_t, c_void_p),
    "ggml_new_tensor_4d": (c_void_p, c_void_p, c_int, *[c_int64] * 4),
    "ggml_threadpool_params_init": (None, c_void_p, c_int),
}

ggml = libggml
for _name, (_result, *_arguments) in _SIGNATURES.items():
    if _function := getattr(ggml, _name, None):  # another release may lack one that is hardly ever needed
        _function.restype, _function.argtypes = _result, _arguments
