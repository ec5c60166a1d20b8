"""The texts of earlier sessions, kept on disk with `--history`: one file for each tokenizer, of bounded size."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from specrun.decoding.source_files import token_files
from specrun.decoding.source_files.token_files import DamagedTokensError
from specrun.errors import DraftSourceError
from specrun.locations import set_aside
from specrun.speculation.sources.source import Int32Array
from specrun.speculation.sources.suffix_array import SuffixArray, SuffixArraySource

MAX_TOKENS = 1 << 20  # most tokens of a history: 4 MB on disk, sorted in about half a second
_MAGIC = b"specrun.history1"
_KIND = "a history written by specrun"


class History:
    """The texts of earlier sessions with one tokenizer.

    texts: int32 arrays, oldest first. problem: one line that says why an existing file is not used, or "". A damaged
        file is set aside, and the next `add` begins a new one.
    """

    def __init__(self, folder: Path, fingerprint: str, max_tokens: int = MAX_TOKENS) -> None:
        """Read the file in `folder` for the tokenizer with this fingerprint, if it exists. Raises nothing."""
        name = hashlib.sha256(fingerprint.encode()).hexdigest()[:16]
        self.path = folder / f"history-{name}.tokens"
        self._fingerprint = fingerprint
        self._max_tokens = max_tokens
        self.texts, self.problem = self._read()

    def add(self, tokens: Sequence[int]) -> None:
        """Add a text after those in the file, which other sessions may have extended meanwhile.

        The oldest texts are dropped until at most `max_tokens` are left. Raises DraftSourceError.
        """
        newest = np.asarray(tokens[-self._max_tokens :], np.int32)
        with token_files.alone(self.path):
            texts = [*self._read()[0], newest]
            n_tokens = sum(map(len, texts))
            while n_tokens > self._max_tokens:
                n_tokens -= len(texts.pop(0))
            lengths = np.array([len(text) for text in texts], np.int32)
            header = {"texts": len(texts)}
            token_files.write(self.path, _MAGIC, self._fingerprint, header, [lengths, *texts], private=True)
        self.texts, self.problem = texts, ""

    def source(self) -> SuffixArraySource:
        """A draft source over the texts as they are now."""
        return SuffixArraySource(SuffixArray.build(self.texts))

    def _read(self) -> tuple[list[Int32Array], str]:
        """The texts in the file and the `problem` with it."""
        try:
            if not self.path.exists():
                return [], ""
            header, values = token_files.read(self.path, _MAGIC, _KIND, self._fingerprint)
            values = np.array(values)  # Windows neither renames nor replaces a file that is mapped
            return self._split(values, header.get("texts")), ""
        except DamagedTokensError as error:
            return [], f"{error}; it is {set_aside(self.path)}"
        except DraftSourceError as error:
            return [], str(error)
        except OSError as error:
            return [], f"{self.path} cannot be read: {error.strerror}"

    def _split(self, values: Int32Array, n_texts: object) -> list[Int32Array]:
        """Split int32 values into texts; the lengths of the texts come first."""
        if isinstance(n_texts, int) and 0 <= n_texts <= len(values) and not (values < 0).any():
            lengths, tokens = values[:n_texts], values[n_texts:]
            if lengths.sum() == len(tokens):
                return np.split(tokens, np.cumsum(lengths)[:-1]) if n_texts else []
        raise DamagedTokensError(f"{self.path} is damaged: its texts do not add up")
