"""Worker threads that a context keeps, for builds of llama.cpp without OpenMP.

Such a build otherwise makes the threads anew for each part of a pass that the CPU computes, which is about one a layer
where a GPU has the others. OpenMP keeps its threads by itself, and takes none of a pool. A pool may have more threads
than a pass asks for, and how a pass is divided does not depend on who computes, so the bits stay the same.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import llama_cpp.llama_cpp

from specrun.hardware.cpu import cpu_features
from specrun.llama import devices, library
from specrun.llama.ggml import ggml

_NEW, _FREE = b"ggml_threadpool_new", b"ggml_threadpool_free"
_MOST_THREADS = 512  # GGML_MAX_N_THREADS
# A thread sleeps as soon as nothing is left to do. With llama.cpp's default it would look for work for a tenth of a
# second, on the cores on which the other model computes meanwhile.
_NO_POLLING = 0


class _Parameters(ctypes.Structure):
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
    """The threads of one context. Close it after the context, because passes of the context use it."""

    def __init__(self, context: Any, n_threads: int) -> None:
        """context: the C pointer. n_threads: the most that a pass will ask for."""
        parameters = _Parameters()
        ggml.ggml_threadpool_params_init(ctypes.byref(parameters), n_threads)
        parameters.poll = _NO_POLLING
        self._handle = _function(_NEW, ctypes.c_void_p)(ctypes.byref(parameters))
        attach = llama_cpp.llama_cpp._lib.llama_attach_threadpool
        attach.restype, attach.argtypes = None, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        attach(context, self._handle, self._handle)

    def close(self) -> None:
        """End the threads."""
        if self._handle:
            _function(_FREE, None)(self._handle)
            self._handle = None


@cache
def is_needed() -> bool:
    """Whether this build of llama.cpp has no OpenMP, which would keep the threads, and can make pools instead."""
    return "OPENMP" not in cpu_features(devices.system_info()) and all(_function(name, None) for name in (_NEW, _FREE))


def _function(name: bytes, result: Any) -> Any:
    """A function of the CPU backend, whose library may be another than ggml's, with a pointer as its argument."""
    address = ggml.ggml_backend_reg_get_proc_address(ggml.ggml_backend_reg_by_name(b"CPU"), name)
    return ctypes.CFUNCTYPE(result, ctypes.c_void_p)(address) if address else None
