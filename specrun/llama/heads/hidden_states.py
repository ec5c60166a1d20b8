"""The hidden states of the target's committed text, kept for a head that reads them when it drafts next.

llama.cpp has the rows of the last pass only, and a prefix that stays in the target's cache is never computed again. So
the rows of every committed token are copied when it is committed, whether the plan of that pass drafts or not, and the
states are kept as long as the text is. They take a few percent of what the target's KV cache takes.

llama.cpp's functions for them are not declared in its public header. They are exported under C++ names, and may be
missing or renamed in another release. So all of them are looked up when the first head is loaded, and what this build
lacks is said in one line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import POINTER, c_bool, c_float, c_uint32, c_void_p
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import llama_cpp.llama_cpp
import numpy as np
from numpy.typing import NDArray

from specrun.errors import LlamaError
from specrun.llama.batch import Floats, common_prefix
from specrun.llama.context import ContextConfig, LlamaContext

Indices = NDArray[np.intp]

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
    library: Any = llama_cpp.llama_cpp._lib
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


def keep(context: c_void_p, masked: bool) -> None:
    """Let each pass keep hidden states after the last layer: of all rows, or if `masked` of those with logits."""
    functions()["llama_set_embeddings_nextn"](context, True, masked)


def kept(context: c_void_p, n_rows: int, width: int) -> Floats:
    """float32[n_rows, width]: the states that the last pass kept, as a view that the next pass overwrites."""
    return _rows(functions()["llama_get_embeddings_nextn"](context), n_rows, width)


def _rows(pointer: Any, n_rows: int, width: int) -> Floats:
    if not pointer:
        raise LlamaError("llama.cpp kept no hidden states of a pass; --debug shows its log")
    return np.ctypeslib.as_array(pointer, shape=(n_rows, width))


@dataclass(frozen=True, eq=False)
class SavedStates:
    """A copy of the states of a text."""

    tokens: list[int]
    states: NDArray[np.floating[Any]]  # [len(tokens), state_width], the state after each token


class TargetStates:
    """The states of one text, one behind each token.

    tokens: the text. Its beginning is the target's committed text, and where that was taken back, the rest is dropped
        as soon as another token is noted there.

    target: its context, which keeps the rows of each pass from now on.
    layers: those of the target whose rows are read where they enter, and joined in this order. None: the rows after
        the last layer, which every pass then computes for all of its tokens.
    config: of the head's context, which has room for the text.
    state_width: floats of a state.
    encode: makes states, float32[n, state_width], from at most `n_batch` rows; None where rows are states.
    dtype: of the states while they are kept.

    of_another_text: makes the same for another text of the target's context.

    Ctrl-C may come between any two lines of the methods; `tokens` then has no token without its row.
    """

    def __init__(
        self,
        target: LlamaContext,
        layers: tuple[int, ...],
        config: ContextConfig,
        state_width: int,
        encode: Callable[[Floats], Floats] | None = None,
        dtype: type[np.floating[Any]] = np.float32,
    ) -> None:
        if layers:
            keep_layer_inputs(target.handle, layers)
        else:
            keep(target.handle, masked=False)
        self.of_another_text = partial(TargetStates, target, layers, config, state_width, encode, dtype)
        self.tokens: list[int] = []
        self._target = target
        self._layers = layers
        self._encode = encode
        # Pages of memory that nothing was written to yet take no room.
        self._states = np.empty((config.n_ctx, state_width), dtype)
        self._largest = float(np.finfo(dtype).max)
        self._n_encoded = 0  # tokens whose states are there; the rows of the others are in `_rows`
        width = len(layers) * target.model.n_embd if layers else target.model.n_embd_out
        self._rows = np.empty((config.n_batch, width), np.float32)

    def note(self, start: int, tokens: Sequence[int], places: Indices) -> None:
        """Keep the rows of `tokens`, which the text has from position `start` on, from the target's last pass.

        places: where the tokens are in the batch of that pass. Raises ValueError if rows before `start` are missing.
        """
        if start > len(self.tokens):
            raise ValueError(f"states from position {start} on; there are {len(self.tokens)}")
        del self.tokens[start:]
        done = 0
        while done < len(tokens):
            self._n_encoded = min(self._n_encoded, len(self.tokens))
            n_waiting = len(self.tokens) - self._n_encoded
            if n_waiting == len(self._rows):
                self._settle()
                continue
            n = min(len(tokens) - done, len(self._rows) - n_waiting)
            self._rows[n_waiting : n_waiting + n] = self._last_rows(places[done : done + n])
            self.tokens += tokens[done : done + n]
            done += n

    def _last_rows(self, places: Indices) -> Floats:
        """float32[n, width]: copies of rows of the target's last pass."""
        handle, model, n = self._target.handle, self._target.model, int(places.max()) + 1
        if not self._layers:
            return kept(handle, n, model.n_embd_out)[places]
        return np.hstack([layer_inputs(handle, k, n, model.n_embd)[places] for k in self._layers])

    def _settle(self) -> None:
        """Make states from the rows that wait."""
        self._n_encoded = min(self._n_encoded, len(self.tokens))
        rows = self._rows[: len(self.tokens) - self._n_encoded]
        if len(rows):
            states = self._encode(rows) if self._encode else rows
            self._states[self._n_encoded : len(self.tokens)] = np.clip(states, -self._largest, self._largest)
            self._n_encoded = len(self.tokens)

    @property
    def n_bytes(self) -> int:
        """Bytes of the states of the text."""
        return len(self.tokens) * self._states.shape[1] * self._states.itemsize

    def save(self) -> SavedStates:
        """A copy of all states."""
        self._settle()
        return SavedStates(list(self.tokens), self._states[: len(self.tokens)].copy())

    def restore(self, saved: SavedStates) -> None:
        """Hold what was saved, instead of what is held now."""
        self.tokens = []
        self._n_encoded = len(saved.tokens)
        self._states[: len(saved.tokens)] = saved.states
        self.tokens = list(saved.tokens)

    def of(self, text: Sequence[int], begin: int, end: int) -> NDArray[np.floating[Any]]:
        """dtype[end - begin, state_width]: the states after the tokens begin .. end - 1 of `text`.

        Position -1 stands for the beginning, whose state is 0. Raises ValueError if the target has not read the text so
        far (see `Engine.read_for_draft`).
        """
        if common_prefix(self.tokens, text[:end]) < end:
            raise ValueError("the target has not read this text, so there are no states of it")
        self._settle()
        states = self._states[max(begin, 0) : end]
        return np.pad(states, ((1, 0), (0, 0))) if begin < 0 else states
