"""llama.cpp's tiled kernels for K- and i-quants, which the environment can turn off or on in passes of every size.

On x86 CPUs they compute passes of 8 and more tokens, and give the last bits of a token's logits other values than the
kernels of smaller passes. llama.cpp reads two variables of the environment once, at the first pass of a process. So the
first context settles for the whole process which kernels compute.

They take as long for 8 tokens as for 16, on a CPU without AVX-512 up to 1.7 times as long as other kernels take for 8
(docs/benchmarks/types.md). `TiledFrom` lets them begin at a larger size.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Collection
from typing import Any

from specrun.errors import UsageError
from specrun.llama.shared_library import ggml
from specrun.llama.weight_orders import tensors_of
from specrun.llama_settings import TiledKernels

_ENABLED, _FORCED = "GGML_CPU_TILED_MM", "GGML_CPU_TILED_MM_FORCE"
VARIABLES = (_ENABLED, _FORCED)
_VALUES: dict[TiledKernels, dict[str, str]] = {"auto": {}, "never": {_ENABLED: "0"}, "always": {_FORCED: "1"}}
# Of llama.cpp's tiled.cpp; a model has at least one of them if tiled kernels compute anything.
_TYPES = {
    "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
    "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS",
}  # fmt: skip

_settled: TiledKernels | None = None


class TiledFrom:
    """Lets tiled kernels compute passes from so many tokens on, and llama.cpp's others all smaller ones.

    llama.cpp lets tiled kernels compute no weights whose `extra` points to anything, because only memory with
    re-ordered weights sets it. Its CPU backend reads it for no other memory, so a pointer there says for each pass
    which kernels compute. Whether that is so is checked once for each build (`facts.bits.check_tiled_from`).
    """

    def __init__(self, model: Any, least: int) -> None:
        """model: llama.cpp's pointer to it. least: tokens of the smallest pass that tiled kernels compute.

        Raises LlamaError if this build of llama.cpp does not show its tensors.
        """
        self._least = least
        self._mark = ctypes.create_string_buffer(1)
        self._is_marked: bool | None = False  # None while it is changed: Ctrl-C may come between any two lines
        matrices = (tensor for tensor in tensors_of(model).values() if tensor.ne[1] > 1 and not tensor.extra)
        self._tensors = [
            tensor
            for tensor in matrices
            if ggml.ggml_backend_buft_is_host(ggml.ggml_backend_buffer_get_type(tensor.buffer))
        ]

    def choose(self, n_tokens: int) -> None:
        """To be called before each pass, over so many tokens."""
        is_marked = n_tokens < self._least
        if is_marked == self._is_marked:
            return
        self._is_marked = None
        mark = ctypes.addressof(self._mark) if is_marked else None
        for tensor in self._tensors:
            tensor.extra = mark
        self._is_marked = is_marked


def has_processor() -> bool:
    """Whether this CPU is of a kind for which llama.cpp has tiled kernels."""
    return platform.machine().lower() in ("x86_64", "amd64")


def compute(types: Collection[str]) -> bool:
    """Whether tiled kernels may compute a model with weights of these types on this CPU."""
    return has_processor() and not _TYPES.isdisjoint(types)


def in_use() -> TiledKernels:
    """What this process computes with, or will, as far as its environment says."""
    return _settled or _of_environment()


def is_open() -> bool:
    """Whether neither this process nor its environment has chosen yet."""
    return _settled is None and _of_environment() == "auto"


def settle(wanted: TiledKernels | None) -> None:
    """Choose for this process, before its first pass; None takes what there is. Raises UsageError if a model of this
    process has been computed with other kernels, because the text would not be exact as promised.
    """
    global _settled
    if _settled is None:
        if wanted:
            for name in VARIABLES:
                os.environ.pop(name, None)
            os.environ.update(_VALUES[wanted])
        _settled = _of_environment()
    elif wanted and wanted != _settled:
        raise UsageError(
            f"llama.cpp's tiled kernels are set to `{_settled}` in this process, and the model's profile needs "
            f"`{wanted}` to be exact; load this model first, or in a process of its own"
        )


def _of_environment() -> TiledKernels:
    """What llama.cpp reads: a number that is not 0 enables, and 1 forces; without a number 0 is read."""
    enabled = os.environ.get(_ENABLED)
    if enabled is not None and not _number(enabled):
        return "never"
    return "always" if _number(os.environ.get(_FORCED, "")) == 1 else "auto"


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return 0
