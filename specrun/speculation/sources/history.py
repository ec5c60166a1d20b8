"""What was written in earlier sessions, kept on disk where the user asks for it.

One file for each tokenizer, of bounded size: the oldest texts go first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specrun.errors import DraftSourceError
from specrun.speculation.sources import files
from specrun.speculation.sources.suffix_array import SuffixArray, SuffixArraySource

MAX_TOKENS = 1 << 20
"""Kept by default: 4 MB. They are sorted in about half a second."""

_MAGIC = b"specrun.history1"
_WHAT = "a history written by specrun"

Int32Array = NDArray[np.int32]


class History:
    """The texts of earlier sessions, oldest first.

    problem: why a file that is there is not used, in one line, or "". It is overwritten by the next `add`.
    """

    def __init__(self, folder: Path, fingerprint: str, max_tokens: int = MAX_TOKENS) -> None:
        """fingerprint: of the tokenizer. Reads what is there; raises nothing."""
        name = hashlib.sha256(fingerprint.encode()).hexdigest()[:16]
        self.path = folder / f"history-{name}.tokens"
        self._fingerprint = fingerprint
        self._max_tokens = max_tokens
        self.texts, self.problem = self._read()

    def add(self, tokens: Sequence[int]) -> None:
        """Keep one more text, with what other sessions have kept since. Raises DraftSourceError if the disk refuses."""
        newest = np.asarray(tokens[-self._max_tokens :], np.int32)
        texts = [*self._read()[0], newest]
        n_tokens = sum(map(len, texts))
        while n_tokens > self._max_tokens:
            n_tokens -= len(texts.pop(0))
        lengths = np.array([len(text) for text in texts], np.int32)
        header = {"tokenizer": self._fingerprint, "texts": len(texts)}
        files.write(self.path, _MAGIC, header, [lengths, *texts], private=True)
        self.texts, self.problem = texts, ""

    def forget(self) -> None:
        """Delete everything. Raises DraftSourceError if the disk refuses."""
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise DraftSourceError(f"{self.path} cannot be deleted: {error.strerror}") from error
        self.texts, self.problem = [], ""

    def source(self) -> SuffixArraySource:
        """A source over the texts as they are now."""
        return SuffixArraySource("history", SuffixArray.build(self.texts))

    def _read(self) -> tuple[list[Int32Array], str]:
        try:
            if not self.path.exists():
                return [], ""
            header, values = files.read(self.path, _MAGIC, _WHAT)
            files.check_tokenizer(self.path, header, self._fingerprint)
            return _split(np.array(values), header.get("texts")), ""
        except DraftSourceError as error:
            return [], str(error)
        except OSError as error:
            return [], f"{self.path} cannot be read: {error.strerror}"
        except ValueError:
            return [], f"{self.path} is damaged: its texts do not add up"


def _split(values: Int32Array, n_texts: object) -> list[Int32Array]:
    """The texts behind their lengths. Raises ValueError if they are not as long as that."""
    if not isinstance(n_texts, int) or not 0 <= n_texts <= len(values):
        raise ValueError("too many texts")
    lengths, tokens = values[:n_texts], values[n_texts:]
    if (values < 0).any() or lengths.sum() != len(tokens):
        raise ValueError("texts of other lengths")
    return np.split(tokens, np.cumsum(lengths)[:-1]) if n_texts else []
