"""llama.cpp's eval callback, which stops a pass when a layer's router has chosen, so that experts can be read."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp._ggml import libggml

from specrun.llama.streaming.address_space import CannotStreamError
from specrun.llama.streaming.gate import name_function

_RANKING = b"ffn_moe_argsort-"  # what llama.cpp calls a layer's experts in the order of their scores, best first


@cache
def _functions() -> tuple[Any, Any]:
    """llama.cpp's `ggml_get_data` and `ggml_nelements`."""
    library = ctypes.PyDLL(libggml._name, handle=libggml._handle)
    try:
        data, n_elements = library.ggml_get_data, library.ggml_nelements
    except AttributeError as error:
        raise CannotStreamError("this llama.cpp does not show the results of its operations") from error
    data.argtypes = n_elements.argtypes = [ctypes.c_void_p]
    data.restype, n_elements.restype = ctypes.c_void_p, ctypes.c_int64
    return data, n_elements


class ExpertGate:
    """The callback for one context, whose parameters must have it before the context is made.

    n_experts, n_used: experts of a layer, and how many of them a token uses. read: reads these experts of a layer.

    callback: for llama.cpp.
    layers: the layers whose routers chose in the last pass.
    failure: what ended the last pass too early; its results are worthless then.
    Raises CannotStreamError if this llama.cpp lacks what it needs.
    """

    def __init__(self, n_experts: int, n_used: int, read: Callable[[int, list[int]], None]) -> None:
        self.callback = llama_cpp.ggml_backend_sched_eval_callback(self._on_operation)
        self.layers: list[int] = []
        self.failure: BaseException | None = None
        self._n_experts, self._n_used = n_experts, n_used
        self._read = read
        self._name_of = name_function()
        self._data, self._n_elements = _functions()

    def begin_pass(self) -> None:
        """To be called before every pass."""
        self.layers = []
        self.failure = None

    def _on_operation(self, tensor: int, asks: bool, _: object) -> bool:
        """As in `Gate`."""
        if self.failure:
            return asks
        try:
            name = self._name_of(tensor)
            if not name.startswith(_RANKING):
                return not asks
            if not asks:
                layer = int(name[len(_RANKING) :])
                self.layers.append(layer)
                self._read(layer, self._chosen(tensor))
            return True
        except BaseException as error:  # Ctrl-C too, as nothing can be raised through llama.cpp
            self.failure = error
            return asks

    def _chosen(self, tensor: int) -> list[int]:
        """The experts that any token of the pass uses."""
        n_tokens = self._n_elements(tensor) // self._n_experts
        pointer = ctypes.cast(self._data(tensor), ctypes.POINTER(ctypes.c_int32))
        ranking = np.ctypeslib.as_array(pointer, (n_tokens, self._n_experts))
        return [int(expert) for expert in np.unique(ranking[:, : self._n_used])]
