"""A grammar that counts from a certain text on."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from specrun.constraints.trigger import Progress, Trigger, TriggerReader
from specrun.llama.grammar import Grammar, TokenIds
from specrun.llama.loaded_model import LlamaModel

_KEPT = 1024  # texts whose progress is kept; the least recently used is forgotten first


class TriggeredGrammar:
    """Allows every text until the trigger, and behind it what the grammar allows; a `specrun.sampling.Constraint`.

    A token that would reach beyond the trigger is not allowed, so that the grammar begins with a token. shown: control
    tokens whose name is text.
    """

    def __init__(self, grammar: Grammar, trigger: Trigger, model: LlamaModel, shown: Collection[int]) -> None:
        self._grammar = grammar
        self._model = model
        self._shown = frozenset(shown)
        self._reader = TriggerReader(trigger)
        self._progress: OrderedDict[tuple[int, ...], tuple[Progress, int]] = OrderedDict()

    def allowed(self, written: Sequence[int], tokens: TokenIds) -> NDArray[np.bool_]:
        """bool[len(tokens)]: which of `tokens` may come after `written` (all tokens since the prompt)."""
        progress, n_free = self._at(tuple(written))
        if progress.is_reached:
            return self._grammar.allowed(written[n_free:], tokens)
        result = np.ones(len(tokens), np.bool_)
        for i in np.flatnonzero(self._may_reach_beyond[tokens]):
            result[i] = not self._reader.after(progress, self._bytes(int(tokens[i])))[1]
        return result

    def is_complete(self, written: Sequence[int]) -> bool:
        """Whether the text may end after `written`."""
        progress, n_free = self._at(tuple(written))
        return not progress.is_reached or self._grammar.is_complete(written[n_free:])

    def _at(self, written: tuple[int, ...]) -> tuple[Progress, int]:
        """The progress after `written`, and how many of its tokens are free: those up to the trigger."""
        n_known = len(written)
        while n_known and written[:n_known] not in self._progress:
            n_known -= 1
        progress, n_free = self._progress.get(written[:n_known], (self._reader.start, 0))
        for n in range(n_known, len(written)):
            if not progress.is_reached:
                progress, n_free = self._reader.after(progress, self._bytes(written[n]))[0], n + 1
        if written:
            self._progress[written] = progress, n_free
            self._progress.move_to_end(written)
            if len(self._progress) > _KEPT:
                self._progress.popitem(last=False)
        return progress, n_free

    def _bytes(self, token: int) -> bytes:
        return self._model.token_bytes(token, token in self._shown)

    @cached_property
    def _may_reach_beyond(self) -> NDArray[np.bool_]:
        """bool[n_vocab]: tokens that have the trigger's last byte before their own last byte."""
        last = self._reader.last_byte
        return np.array([last in data[:-1] for data in self._model.all_token_bytes])
