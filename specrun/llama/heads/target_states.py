"""The hidden states of the target's committed text, kept for a head that reads them when it drafts next.

llama.cpp has the rows of the last pass only, and a prefix that stays in the target's cache is never computed again. So
the rows of every committed token are copied when it is committed, whether the plan of that pass drafts or not, and the
states are kept as long as the text is. They take a few percent of what the target's KV cache takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specrun.llama.batch import common_prefix
from specrun.llama.context import LlamaContext
from specrun.llama.heads import bindings
from specrun.llama.heads.bindings import Floats

Indices = NDArray[np.intp]


@dataclass(frozen=True)
class StateReader:
    """Reads the target's rows of its last pass.

    width: floats of a row. rows: gives float32[n, width], copies of the rows of n tokens, whose places in the batch of
    the pass it takes.
    """

    width: int
    rows: Callable[[Indices], Floats]


def layer_inputs(target: LlamaContext, layers: tuple[int, ...]) -> StateReader:
    """Reads the rows that entered these layers of the target, the states before them, joined in their order."""
    bindings.keep_layer_inputs(target.handle, layers)
    width = target.model.n_embd

    def rows(tokens: Indices) -> Floats:
        n = int(tokens.max()) + 1
        return np.hstack([bindings.layer_inputs(target.handle, layer, n, width)[tokens] for layer in layers])

    return StateReader(len(layers) * width, rows)


def last_states(target: LlamaContext) -> StateReader:
    """Reads the rows behind the target's last layer. Every pass computes that layer for all of its tokens then."""
    bindings.keep_states(target.handle, masked=False)
    width = target.model.n_embd_out
    return StateReader(width, lambda tokens: bindings.states(target.handle, int(tokens.max()) + 1, width)[tokens])


@dataclass(frozen=True, eq=False)
class SavedStates:
    """A copy of the states of a text."""

    tokens: list[int]
    states: NDArray[np.floating[Any]]  # [len(tokens), state_width], the state behind each token


class TargetStates:
    """The states of one text, one behind each token.

    tokens: the text. Its beginning is the target's committed text, and where that was taken back, the rest is dropped
        as soon as another token is noted there.
    state_width: floats of a state.

    reader: reads the rows of a pass.
    encode: makes states, float32[n, state_width], from at most `most` rows; None where rows are states.
    n_ctx: most tokens of the text. dtype: of the states while they are kept.

    Ctrl-C may come between any two lines of the methods; `tokens` then has no token without its row.
    """

    def __init__(
        self,
        reader: StateReader,
        encode: Callable[[Floats], Floats] | None,
        most: int,
        state_width: int,
        n_ctx: int,
        dtype: type[np.floating[Any]] = np.float32,
    ) -> None:
        self.tokens: list[int] = []
        self.state_width = state_width
        self._reader = reader
        self._encode = encode
        # Pages of memory that nothing was written to yet take no room.
        self._states = np.empty((n_ctx, state_width), dtype)
        self._largest = float(np.finfo(dtype).max)
        self._n_encoded = 0  # tokens whose states are there; the rows of the others are in `_rows`
        self._rows = np.empty((most, reader.width), np.float32)

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
            self._rows[n_waiting : n_waiting + n] = self._reader.rows(places[done : done + n])
            self.tokens += tokens[done : done + n]
            done += n

    def _settle(self) -> None:
        """Make states from the rows that wait."""
        self._n_encoded = min(self._n_encoded, len(self.tokens))
        rows = self._rows[: len(self.tokens) - self._n_encoded]
        if len(rows):
            states = self._encode(rows) if self._encode else rows
            self._states[self._n_encoded : len(self.tokens)] = np.clip(states, -self._largest, self._largest)
            self._n_encoded = len(self.tokens)

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
        """dtype[end - begin, state_width]: the states behind the tokens begin .. end - 1 of `text`.

        Position -1 stands for the beginning, whose state is 0. Raises ValueError if the target has not read the text so
        far (see `Engine.read_for_draft`).
        """
        if common_prefix(self.tokens, text[:end]) < end:
            raise ValueError("the target has not read this text, so there are no states of it")
        self._settle()
        states = self._states[max(begin, 0) : end]
        return np.pad(states, ((1, 0), (0, 0))) if begin < 0 else states
