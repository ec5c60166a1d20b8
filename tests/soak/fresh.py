"""What a context that has done nothing else gives for a text: the reference of every state machine."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from specrun.llama import LlamaModel, TargetContext
from specrun.llama.context import ContextConfig, LlamaContext, Logits
from specrun.speculation.planning.pass_sizes import ANY_SIZE, PassSizes
from specrun.speculation.tree import TokenTree

Opened = Callable[[], AbstractContextManager[LlamaContext]]
_KEPT = 64  # texts whose state is remembered


@dataclass(frozen=True)
class Held:
    """What a cache holds of a text.

    state: uint8[n], positions, K and V of the first sequence as llama.cpp would save them. n_bytes: of all its cells.
    """

    state: bytes
    n_bytes: int


class Fresh:
    """Reads texts with contexts of their own, each made for one text."""

    def __init__(self, open_context: Opened, padding: PassSizes = ANY_SIZE) -> None:
        self.open = open_context
        self._padding = padding
        self._held: OrderedDict[tuple[int, ...], Held] = OrderedDict()
        self.n_contexts = 0

    @contextmanager
    def _target(self) -> Iterator[TargetContext]:
        self.n_contexts += 1
        with self.open() as context:
            target = TargetContext(context)
            target.padding = self._padding
            yield target

    def held(self, tokens: Sequence[int]) -> Held:
        """What the cache holds when these tokens, and nothing else, were decoded."""
        key = tuple(tokens)
        if key not in self._held:
            with self._target() as target:
                if tokens:
                    target.set_prompt([*tokens, tokens[-1]])  # the last token of a prompt waits for its pass
                self._held[key] = Held(target.context.sequence_state(0).tobytes(), state_bytes(target.context))
            if len(self._held) > _KEPT:
                self._held.popitem(last=False)
        return self._held[key]

    def rows(self, tokens: Sequence[int], path: Sequence[int]) -> Logits:
        """float32[len(path) + 1, n_vocab]: the logits after a text, and after each token that continues it, from one
        pass over each token, as plain decoding makes them.
        """
        with self._target() as target:
            target.set_prompt(list(tokens))
            rows = []
            for following in [*path, 0]:
                root = TokenTree.root_only(target.tokens[-1])
                rows.append(target.score(root)[0].copy())
                target.commit(root, [0], following)
        return np.array(rows)


def opened(model: LlamaModel, config: ContextConfig) -> Opened:
    """Makes contexts of a model."""
    return lambda: LlamaContext(model, config)


def check_cache(target: TargetContext, fresh: Fresh) -> None:
    """The target's cache holds the committed text as a fresh context does, to the last bit, and nothing else."""
    context = target.context
    assert 0 <= target.n_cached < max(len(target.tokens), 1)
    lengths = context.sequence_lengths().tolist()
    assert lengths[0] == target.n_cached
    assert set(lengths) <= {target.n_cached, 0}
    expected = fresh.held(target.tokens[: target.n_cached])
    in_use = [seq for seq, length in enumerate(lengths) if length]
    for seq in in_use or [0]:
        state = _of_first_sequence(context.sequence_state(seq), target.n_cached)
        assert state == expected.state, f"sequence {seq} holds something else"
    # In what llama.cpp saves, a cell has 4 bytes for each of its sequences.
    further = 4 * target.n_cached * max(len(in_use) - 1, 0)
    assert state_bytes(context) == expected.n_bytes + further, "there are stray cells"


def check_lengths(context: LlamaContext) -> None:
    """The sequences are as long as llama.cpp says."""
    lengths = context.sequence_lengths().tolist()
    assert [context.sequence_end(seq) for seq in range(len(lengths))] == lengths


def _of_first_sequence(state: NDArray[np.uint8], n_cells: int) -> bytes:
    """What llama.cpp would have saved if it had been the first sequence: its number is in the head and in each cell."""
    state = state.copy()
    state[4:8] = 0
    state[16 : 16 + 12 * n_cells].view(np.int32).reshape(n_cells, 3)[:, 2] = 0
    return state.tobytes()


def state_bytes(context: LlamaContext) -> int:
    """Bytes that llama.cpp would save of all cells: 4 of each are for each of its sequences."""
    return int(llama_cpp.llama_state_get_size(context.handle))
