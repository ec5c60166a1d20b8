"""Ends this process as backends of llama.cpp end it, through llama.cpp's own log, its abort, and C++ exceptions."""

from __future__ import annotations

import ctypes
from typing import NoReturn

from llama_cpp._ggml import libggml

from specrun.llama import library

_ERROR = 4  # GGML_LOG_LEVEL_ERROR


def abort_as_cuda(message: str) -> NoReturn:
    """What ggml_cuda_error in ggml-cuda.cu does in a pass."""
    with library.CapturedErrors():
        for line in (
            f"CUDA error: {message}",
            "  current device: 0, in function alloc at ggml-cuda.cu:469",
            "  cudaMalloc",
        ):
            libggml.ggml_log_internal(_ERROR, b"%s\n", line.encode())
        libggml.ggml_abort(b"/src/ggml-cuda/ggml-cuda.cu", 109, b"CUDA error")
    raise AssertionError("it goes on")


def throw(what: str) -> NoReturn:
    """Throw a C++ exception with this text."""
    ctypes.CDLL("libstdc++.so.6")["_ZSt21__throw_runtime_errorPKc"](what.encode())
    raise AssertionError("it goes on")
