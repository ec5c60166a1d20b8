"""Loads llama.cpp's shared library, with what a build for CUDA needs from pip's packages of NVIDIA's.

Wheels of llama-cpp-python for CUDA have no CUDA runtime, and the system's loader does not look into pip's packages. A
library that is loaded already is not looked for, so they are loaded first.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from specrun.errors import LlamaError

# In this order, because each needs those before it. The packages for CUDA 12 have a folder for each library, those for
# CUDA 13 one for all: nvidia/cublas/lib, nvidia/cu13/lib; on Windows bin, or bin/x86_64.
_NEEDED = ("cudart", "cublasLt", "cublas")
_MISSING = re.compile(r"(?:lib)?(?:cudart|cublas|cublasLt)(?:64_|\.so\.)(\d+)")


def load() -> None:
    """Import llama_cpp. Raises LlamaError, with what to install, if its library cannot be loaded."""
    for path in runtime_libraries():
        with suppress(OSError):  # one for another CUDA; what is missing then is said below
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    try:
        import llama_cpp  # noqa: F401
    except (RuntimeError, OSError) as error:  # what its loader raises
        raise LlamaError(f"llama.cpp's library cannot be loaded: {_reason(error)}") from error


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
