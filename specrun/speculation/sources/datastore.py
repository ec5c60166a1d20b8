"""Retrieval from files that the user names (REST, arXiv 2311.08252): sorted once, then mapped from disk."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specrun.errors import DraftSourceError, UsageError
from specrun.speculation.sources import files
from specrun.speculation.sources.suffix_array import MAX_MATCH, MAX_TOKENS, SuffixArray, SuffixArraySource

_MAGIC = b"specrun.dstore 1"
_WHAT = "a datastore; `build` writes one from text files"
_CHUNK = 1 << 16  # characters that are tokenized at a time, up to the end of their last line

Tokenize = Callable[[str], Sequence[int]]
Progress = Callable[[int, int], None]
"""Called with the bytes read so far, and those of all files."""

Int32Array = NDArray[np.int32]


def build(
    path: Path, texts: Sequence[Path], tokenize: Tokenize, fingerprint: str, progress: Progress | None = None
) -> int:
    """Write a datastore of UTF-8 text files to `path`; returns its tokens, each of which takes 8 bytes there.

    It takes up to 64 million tokens, and sorts a million of them in about half a second and 50 MB.
    tokenize: a piece of text to token ids, without special tokens. fingerprint: of the tokenizer.
    Raises UsageError for a text file that cannot be used or too much text, DraftSourceError if the disk refuses.
    """
    if not texts:
        raise UsageError("a datastore needs at least one text file")
    try:
        sizes = [text.stat().st_size for text in texts]
        parts = []
        n_tokens = 0
        for i, text in enumerate(texts):
            pieces = []
            for piece, n_read in _pieces(text):
                pieces.append(np.asarray(tokenize(piece), np.int32))
                n_tokens += len(pieces[-1])
                _check_size(n_tokens + len(texts))
                if progress:
                    progress(sum(sizes[:i]) + min(n_read, sizes[i]), sum(sizes))
            parts.append(np.concatenate(pieces) if pieces else np.zeros(0, np.int32))
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be read: {error.strerror}") from error
    array = SuffixArray.build(parts)
    header = {"tokenizer": fingerprint, "tokens": len(array)}
    files.write(path, _MAGIC, header, [array.tokens, array.order])
    return n_tokens


def load(path: Path, fingerprint: str) -> SuffixArraySource:
    """The source over a datastore. Raises DraftSourceError if it is none, damaged, or of another tokenizer."""
    header, values = files.read(path, _MAGIC, _WHAT)
    files.check_tokenizer(path, header, fingerprint)
    n = header.get("tokens")
    if not isinstance(n, int) or n < 0 or len(values) != 2 * n + MAX_MATCH:
        raise DraftSourceError(f"{path} is damaged: its arrays are not as long as its header says")
    return SuffixArraySource("datastore", SuffixArray(values[: n + MAX_MATCH], values[n + MAX_MATCH :]))


def _pieces(path: Path) -> Iterator[tuple[str, int]]:
    """Whole lines of a text file, and the bytes read so far."""
    try:
        with path.open("rb") as file, io.TextIOWrapper(file, encoding="utf-8") as text:
            while lines := text.readlines(_CHUNK):
                yield "".join(lines), file.tell()
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text; name text files only") from error


def _check_size(n_tokens: int) -> None:
    if n_tokens > MAX_TOKENS:
        raise UsageError(f"these files have more than {MAX_TOKENS >> 20} million tokens, which is the most; name fewer")
