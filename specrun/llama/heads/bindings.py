"""llama.cpp's functions for hidden states, which its public header does not declare.

They are exported under C++ names, and may be missing or renamed in another release. So all of them are looked up when
the first head is loaded, and what this build lacks is said in one line.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import POINTER, c_bool, c_float, c_uint32, c_void_p
from functools import cache
from typing import Any

import llama_cpp.llama_cpp
import numpy as np

from specrun.errors import LlamaError
from specrun.llama.batch import Floats

# Name of each function in llama-ext.h, its parameters as g++ and clang++ spell them in the exported name (Itanium C++
# ABI), their types and the result's.
_SIGNATURES: dict[str, tuple[str, list[Any], Any]] = {
    # void (context, layer, value): whether the rows that enter a layer are kept in each pass
    "llama_set_embeddings_layer_inp": ("P13llama_contextjb", [c_void_p, c_uint32, c_bool], None),
    "llama_get_embeddings_layer_inp": ("P13llama_contextj", [c_void_p, c_uint32], POINTER(c_float)),
    # void (context, value, masked): whether hidden states are kept, with `masked` those of rows with logits only
    "llama_set_embeddings_nextn": ("P13llama_contextbb", [c_void_p, c_bool, c_bool], None),
    "llama_get_embeddings_nextn": ("P13llama_context", [c_void_p], POINTER(c_float)),
}


@cache
def functions() -> dict[str, Callable[..., Any]]:
    """All functions by name. Raises LlamaError if this build of llama.cpp lacks one."""
    library: ctypes.CDLL = llama_cpp.llama_cpp._lib
    found: dict[str, Callable[..., Any]] = {}
    for name, (parameters, argument_types, result_type) in _SIGNATURES.items():
        function = getattr(library, name, None) or getattr(library, f"_Z{len(name)}{name}{parameters}", None)
        if function:
            function.argtypes, function.restype = argument_types, result_type
            found[name] = function
    lacking = [name for name in _SIGNATURES if name not in found]
    if lacking:
        raise LlamaError(
            f"this llama.cpp cannot run trained heads, as it lacks {', '.join(lacking)}; "
            "install the llama-cpp-python that specrun asks for, or give a small model as --draft"
        )
    return found


def keep_layer_inputs(context: c_void_p, layers: tuple[int, ...]) -> None:
    """Let each pass of a target's context keep the rows that enter these layers.

    llama.cpp ends the process for a layer that the model does not have, and, in the next pass, for an architecture
    whose graph does not mark the rows (`specrun.catalog.heads` knows those that do).
    """
    for layer in layers:
        functions()["llama_set_embeddings_layer_inp"](context, layer, True)


def layer_inputs(context: c_void_p, layer: int, n_rows: int, width: int) -> Floats:
    """float32[n_rows, width]: the rows of the last pass that entered `layer`, in the order of the batch, whatever
    logits were wanted. It is a view that the next pass overwrites. Only for layers that are kept.
    """
    return _rows(functions()["llama_get_embeddings_layer_inp"](context, layer), n_rows, width)


def keep_states(context: c_void_p, masked: bool) -> None:
    """Let each pass keep hidden states after the last layer: of all rows, or if `masked` of those with logits."""
    functions()["llama_set_embeddings_nextn"](context, True, masked)


def states(context: c_void_p, n_rows: int, width: int) -> Floats:
    """float32[n_rows, width]: the states that the last pass kept, as a view that the next pass overwrites."""
    return _rows(functions()["llama_get_embeddings_nextn"](context), n_rows, width)


def _rows(pointer: Any, n_rows: int, width: int) -> Floats:
    if not pointer:
        raise LlamaError("llama.cpp kept no hidden states of a pass; --debug shows its log")
    return np.ctypeslib.as_array(pointer, shape=(n_rows, width))
