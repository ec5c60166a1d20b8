"""llama.cpp's eval callback, which holds a pass until the weights that come next are in memory."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp._ggml import libggml

from specrun.llama.streaming.address_space import CannotStreamError
from specrun.llama.streaming.ring import Ring

_LAYER_OUTPUT = b"l_out-"  # what llama.cpp calls the last tensor of a layer, with the layer's index behind it
_LOGITS = b"result_output"  # and the last tensor of a pass
_RANKING = b"ffn_moe_argsort-"  # and a layer's experts in the order of their scores, best first


def _function(name: str, result: Any) -> Any:
    """A function of a tensor. Some are called for every operation, so Python's lock is not released for them."""
    try:
        function = ctypes.PyDLL(libggml._name, handle=libggml._handle)[name]
    except AttributeError as error:
        raise CannotStreamError(f"this llama.cpp does not tell of its operations, as it lacks {name}") from error
    function.argtypes, function.restype = [ctypes.c_void_p], result
    return function


class Gate(ABC):
    """The callback for one context, whose parameters must have it before the context is made.

    callback: for llama.cpp.
    layers: the layers that the gate has seen in the last pass.
    failure: what ended the last pass too early; its results are worthless then.
    Raises CannotStreamError if this llama.cpp lacks what it needs.
    """

    def __init__(self) -> None:
        self.callback = llama_cpp.ggml_backend_sched_eval_callback(self._on_operation)
        self.layers: list[int] = []
        self.failure: BaseException | None = None
        self._name_of = _function("ggml_get_name", ctypes.c_char_p)

    def begin_pass(self) -> None:
        """To be called before every pass."""
        self.layers = []
        self.failure = None

    def _on_operation(self, tensor: int, asks: bool, _: object) -> bool:
        """llama.cpp computes operations up to one for which the answer to `asks` is True, then calls again for that.

        Any other answer than True then ends the pass.
        """
        if self.failure:
            return asks
        try:
            return self._answer(tensor, self._name_of(tensor), asks)
        except BaseException as error:  # Ctrl-C too, as nothing can be raised through llama.cpp
            self.failure = error
            return asks

    @abstractmethod
    def _answer(self, tensor: int, name: bytes, asks: bool) -> bool: ...


class LayerGate(Gate):
    """Waits for layers that take turns in a ring.

    llama.cpp asks before every operation whether it shall stop behind it; the answer is yes for the outputs of layers.
    So it computes layer by layer: it asks for all operations of a layer, computes them, says that the layer is done.
    While the gate has no ring it lets everything pass, and only notes the layers.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ring: Ring | None = None
        self._places: dict[int, int] = {}
        self._current = 0
        self._waited_for: int | None = None
        self._is_over = False

    def guard(self, ring: Ring, streamed: Sequence[int]) -> None:
        """From now on wait for the ring. streamed: indices of the layers that take turns in it."""
        self._ring = ring
        self._places = {layer: place for place, layer in enumerate(streamed)}

    def begin_pass(self) -> None:
        super().begin_pass()
        self._begin()

    def _begin(self) -> None:
        if self._ring:
            self._ring.begin_pass()
        self._current, self._waited_for, self._is_over = 0, None, False

    def _answer(self, _tensor: int, name: bytes, asks: bool) -> bool:
        layer = int(name[len(_LAYER_OUTPUT) :]) if name.startswith(_LAYER_OUTPUT) else None
        return self._before(layer, name == _LOGITS) if asks else self._after(layer)

    def _before(self, layer: int | None, is_last: bool) -> bool:
        if layer is not None:
            self.layers.append(layer)
        if not self._ring:
            return False
        if self._is_over or (layer is not None and layer < self._current):
            self._begin()  # another of the passes that llama.cpp makes of a long prompt
        self._is_over = is_last
        if layer is not None:
            self._current = layer
        if self._waited_for != self._current and self._current in self._places:
            self._ring.wait_for(self._places[self._current])
            self._waited_for = self._current
        return layer is not None

    def _after(self, layer: int | None) -> bool:
        if self._ring and layer is not None:
            if layer in self._places:
                self._ring.release_through(self._places[layer])
            self._current = layer + 1
        return True


class ExpertGate(Gate):
    """Stops a pass when a layer's router has chosen, so that experts can be read.

    n_experts, n_used: experts of a layer, and how many of them a token uses. read: reads these experts of a layer.
    """

    def __init__(self, n_experts: int, n_used: int, read: Callable[[int, list[int]], None]) -> None:
        super().__init__()
        self._n_experts, self._n_used = n_experts, n_used
        self._read = read
        self._data = _function("ggml_get_data", ctypes.c_void_p)
        self._n_elements = _function("ggml_nelements", ctypes.c_int64)

    def _answer(self, tensor: int, name: bytes, asks: bool) -> bool:
        if not name.startswith(_RANKING):
            return not asks
        if not asks:
            layer = int(name[len(_RANKING) :])
            self.layers.append(layer)
            self._read(layer, self._chosen(tensor))
        return True

    def _chosen(self, tensor: int) -> list[int]:
        """The experts that any token of the pass uses, ascending."""
        n_tokens = self._n_elements(tensor) // self._n_experts
        pointer = ctypes.cast(self._data(tensor), ctypes.POINTER(ctypes.c_int32))
        ranking = np.ctypeslib.as_array(pointer, (n_tokens, self._n_experts))
        return np.unique(ranking[:, : self._n_used]).tolist()
