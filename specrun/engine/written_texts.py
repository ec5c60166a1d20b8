"""Texts that were written or read before, with their tokens, so that a longer text begins with the same tokens."""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from collections.abc import Sequence

from specrun.engine.prompt_tokens import prompt_tokens
from specrun.llama import LlamaModel


class WrittenTexts:
    """Gives the tokens of texts, where a text that was written before keeps its tokens.

    Tokenized again, an answer might be split differently from how it was written, and the KV cache would be useless
    from there on. Safe to use from several threads.

    most: texts that are remembered; the text that was used longest ago is forgotten.
    """

    def __init__(self, model: LlamaModel, most: int) -> None:
        self._model = model
        self._most = most
        self._kept: OrderedDict[str, array[int]] = OrderedDict()
        self._in_use = threading.Lock()

    def tokens(self, text: str) -> list[int]:
        """Token ids of `text`, beginning with those of the longest remembered text that it begins with."""
        with self._in_use:
            before = max((kept for kept in self._kept if text.startswith(kept)), key=len, default=None)
            if before is None:
                return prompt_tokens(self._model, text)
            tokens = self._kept[before]
            self._kept.move_to_end(before)
        return tokens.tolist() + self._model.tokenize(text[len(before) :], add_special=False)

    def keep(self, text: str, tokens: Sequence[int] | None) -> None:
        """Remember that `text` has these tokens; None, if they say something else, changes nothing."""
        if tokens is None:
            return
        with self._in_use:
            self._kept[text] = array("i", tokens)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
