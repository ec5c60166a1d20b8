"""llama.cpp's eval callback, which holds a pass until the weights that come next are in memory."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from specrun.llama.shared_library import ggml
from specrun.llama.streaming import address_space
from specrun.llama.streaming.address_space import CannotStreamError
from specrun.llama.streaming.ring import Ring
from specrun.llama.weight_orders import Tensor

_LAYER_OUTPUT = b"l_out-"  # what llama.cpp calls the last tensor of a layer, with the layer's index after it
_LOGITS = b"result_output"  # and the last tensor of a pass
_RANKING = b"ffn_moe_argsort-"  # and a layer's experts in the order of their scores, best first
_PRODUCTS = (b"ffn_moe_up-", b"ffn_moe_gate-", b"ffn_moe_gate_up-")  # and the first products with chosen experts
_INDEX_BYTES = 4  # of the index of an expert
_CHOSEN = 2  # place of the chosen experts among the sources of such a product


def _function(name: str, result: Any) -> Any:
    """A function of a tensor, or of a buffer. Some are called for every operation, so Python's lock is not released."""
    try:
        function = ctypes.PyDLL(ggml._name, handle=ggml._handle)[name]
    except AttributeError as error:
        raise CannotStreamError(f"this llama.cpp does not tell of its operations, as it lacks {name}") from error
    function.argtypes, function.restype = [ctypes.c_void_p], result
    return function


class Gate(ABC):
    """The callback for one context, whose parameters must have it before the context is made.

    callback: for llama.cpp.
    layers: the layers that the gate has seen in the last pass. needs: what llama.cpp has to do, as a clause.
    failure: what ended the last pass too early; its results are worthless then.
    Raises CannotStreamError if this llama.cpp lacks what it needs.
    """

    needs: str

    def __init__(self) -> None:
        self.callback = llama_cpp.ggml_backend_sched_eval_callback(self._on_operation)
        self.layers: list[int] = []
        self.failure: BaseException | None = None
        self._name_of = _function("ggml_get_name", ctypes.c_char_p)
        self._is_host = _function("ggml_backend_buffer_is_host", ctypes.c_bool)

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

    def _lies_in_ram(self, tensor: int) -> bool:
        """Whether the CPU computes a tensor."""
        buffer = self._fields(tensor).buffer
        return not buffer or bool(self._is_host(buffer))

    def _fields(self, tensor: int) -> Tensor:
        fields = Tensor.from_address(tensor)
        if fields.name != self._name_of(tensor):
            raise CannotStreamError("this llama.cpp keeps its tensors in another form than specrun knows")
        return fields

    @abstractmethod
    def _answer(self, tensor: int, name: bytes, asks: bool) -> bool: ...


class LayerGate(Gate):
    """Waits for layers that take turns in a ring.

    llama.cpp asks before every operation whether it shall stop after it; the answer is yes for the outputs of layers.
    So it computes layer by layer: it asks for all operations of a layer, computes them, says that the layer is done.
    While the gate has no ring it lets everything pass, and only notes the layers.

    Where layers lie in VRAM, the CPU and each GPU compute a part of the operations in turn, and llama.cpp asks for
    those of a part when the parts before it are computed. A GPU is never stopped: it fuses operations, and would
    compute those on both sides of the stop with other kernels, which give other last bits.
    """

    needs = "compute this model layer by layer"

    def __init__(self) -> None:
        super().__init__()
        self._ring: Ring | None = None
        self._places: dict[int, int] = {}
        self._last = -1  # of the layers that are streamed
        self._current = 0
        self._waited_for: int | None = None
        self._is_over = False

    def guard(self, ring: Ring, streamed: Sequence[int]) -> None:
        """From now on wait for the ring. streamed: indices of the layers that take turns in it."""
        self._ring = ring
        self._places = {layer: place for place, layer in enumerate(streamed)}
        self._last = max(streamed)

    def begin_pass(self) -> None:
        super().begin_pass()
        self._begin()

    def _begin(self) -> None:
        if self._ring:
            self._ring.begin_pass()
        self._current, self._waited_for, self._is_over = 0, None, False

    def _answer(self, tensor: int, name: bytes, asks: bool) -> bool:
        layer = int(name[len(_LAYER_OUTPUT) :]) if name.startswith(_LAYER_OUTPUT) else None
        if asks and layer is not None:
            self.layers.append(layer)
        if not self._ring:
            return not asks
        if not asks:
            if layer is not None:
                self._release(self._ring, layer)
                self._current = layer + 1
            return True
        if self._is_over or (layer is not None and layer < self._current):
            self._begin()  # another of the passes that llama.cpp makes of a long prompt
        self._is_over = name == _LOGITS
        if layer is not None:
            self._current = layer
        if self._waited_for != self._current and self._current in self._places:
            self._ring.wait_for(self._places[self._current])
            self._waited_for = self._current
        if layer is None or layer > self._last:
            return False
        if self._lies_in_ram(tensor):
            return True
        self._release(self._ring, layer)  # of the last layer in RAM only the sum at its end is computed on the GPU
        return False

    def _release(self, ring: Ring, layer: int) -> None:
        if layer in self._places:
            ring.release_through(self._places[layer])


class ExpertGate(Gate):
    """Stops a pass when a layer's router has chosen, so that experts can be read.

    Where attention lies in VRAM, the router has chosen on the GPU when llama.cpp asks for the first product with
    experts in RAM, so that nothing has to be stopped.

    n_experts, n_used: experts of a layer, and how many of them a token uses. layers: those with experts in RAM.
    read: reads experts of a layer. It gets int64[n_experts], by how many tokens of the pass each is used.
    """

    needs = "tell which experts it chose"

    def __init__(
        self, n_experts: int, n_used: int, layers: Sequence[int], read: Callable[[int, NDArray[np.int64]], None]
    ) -> None:
        super().__init__()
        self._n_experts, self._n_used = n_experts, n_used
        self._rankings = {_RANKING + str(layer).encode(): layer for layer in layers}
        self._products = {product + str(layer).encode(): layer for layer in layers for product in _PRODUCTS}
        self._chosen_on_gpu: int | None = None  # the layer whose experts a GPU chooses, until they are read
        self._read = read
        self._data = _function("ggml_get_data", ctypes.c_void_p)
        self._n_elements = _function("ggml_nelements", ctypes.c_int64)

    def _answer(self, tensor: int, name: bytes, asks: bool) -> bool:
        if (layer := self._rankings.get(name)) is not None:
            if not asks:
                self._choose(layer, self._first_of(tensor))
            elif not self._lies_in_ram(tensor):
                self._chosen_on_gpu = layer
                return False
            return True
        if asks and self._chosen_on_gpu is not None and self._products.get(name) == self._chosen_on_gpu:
            self._choose(self._chosen_on_gpu, self._sources_of(tensor))
            self._chosen_on_gpu = None
        return not asks

    def _choose(self, layer: int, chosen: NDArray[np.int32]) -> None:
        """Read the experts that any token of the pass uses. chosen: int32[n_tokens, n_used]."""
        self.layers.append(layer)
        self._read(layer, np.bincount(chosen.ravel(), minlength=self._n_experts))

    def _first_of(self, ranking: int) -> NDArray[np.int32]:
        n_tokens = self._n_elements(ranking) // self._n_experts
        pointer = ctypes.cast(self._data(ranking), ctypes.POINTER(ctypes.c_int32))
        return np.ctypeslib.as_array(pointer, (n_tokens, self._n_experts))[:, : self._n_used]

    def _sources_of(self, product: int) -> NDArray[np.int32]:
        """What the product takes as the chosen experts: llama.cpp's copy in RAM of what the GPU has."""
        source = self._fields(product).src[_CHOSEN]
        if not self._lies_in_ram(source):
            raise CannotStreamError("this llama.cpp does not tell which experts it chose")
        (width, n_tokens), row_bytes = self._fields(source).ne[:2], self._fields(source).nb[1]
        if not n_tokens:
            return np.empty((0, width), np.int32)
        # Rows lie as far from each other as in the ranking that they are cut from.
        memory = address_space.view(self._data(source), (n_tokens - 1) * row_bytes + width * _INDEX_BYTES)
        return np.ndarray((n_tokens, width), np.int32, memory, strides=(row_bytes, _INDEX_BYTES))
