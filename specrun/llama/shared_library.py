"""Loads llama.cpp's shared library, with what a build for CUDA needs from pip's packages of NVIDIA's.

Wheels of llama-cpp-python for CUDA have no CUDA runtime, and the system's loader does not look into pip's packages. A
library that is loaded already is not looked for, so they are loaded first.

`ggml` is the part of it whose functions llama-cpp-python does not declare; those that are used here get types.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from ctypes import c_bool, c_char_p, c_float, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any

from specrun.errors import LlamaError

# In this order, because each needs those before it. The packages for CUDA 12 have a folder for each library, those for
# CUDA 13 one for all: nvidia/cublas/lib, nvidia/cu13/lib; on Windows bin, or bin/x86_64.
_NEEDED = ("cudart", "cublasLt", "cublas")
_MISSING = re.compile(r"(?:lib)?(?:cudart|cublas|cublasLt)(?:64_|\.so\.)(\d+)")


class InitParams(ctypes.Structure):
    """struct ggml_init_params in ggml.h."""

    _fields_ = (("size", c_size_t), ("buffer", c_void_p), ("no_data", c_bool))


# Result and arguments. Most pointers are to devices, backends (registries), buffers, tensors or contexts.
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "ggml_backend_buffer_get_type": (c_void_p, c_void_p),
    "ggml_backend_buft_is_host": (c_bool, c_void_p),
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


def load() -> ctypes.CDLL:
    """Import llama_cpp, and return ggml. Raises LlamaError, with what to install, if the library cannot be loaded."""
    for path in runtime_libraries():
        with suppress(OSError):  # one for another CUDA; what is missing then is said below
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    try:
        from llama_cpp._ggml import libggml
    except (RuntimeError, OSError) as error:  # what its loader raises
        raise LlamaError(f"llama.cpp's library cannot be loaded: {_reason(error)}") from error
    for name, (result, *arguments) in _SIGNATURES.items():
        if function := getattr(libggml, name, None):  # another release may lack one that is hardly ever needed
            function.restype, function.argtypes = result, arguments
    return libggml


def runtime_libraries() -> Iterator[Path]:
    """The libraries of pip's packages that this build of llama.cpp needs, in the order in which they must be loaded."""
    spec = importlib.util.find_spec("llama_cpp")
    folder = Path(spec.origin).parent / "lib" if spec and spec.origin else Path()
    if not any(folder.glob("*ggml-cuda*")):
        return
    nvidia = importlib.util.find_spec("nvidia")  # NVIDIA's packages share this name without a package of its own
    for root in map(Path, nvidia.submodule_search_locations or () if nvidia else ()):
        for name in _NEEDED:
            pattern = f"{name}64_*.dll" if sys.platform == "win32" else f"lib{name}.so.*"
            yield from sorted(root.glob(f"*/{'bin' if sys.platform == 'win32' else 'lib'}/**/{pattern}"))


def _reason(error: Exception) -> str:
    text = str(error).rpartition("': ")[2] or str(error)
    if found := _MISSING.search(text):
        return f"{text}; install NVIDIA's runtime for it, in a clone of specrun: pip install '.[cuda{found[1]}]'"
    return f"{text}; `specrun doctor` says what to install"


ggml = load()  # before the modules that import llama_cpp
