"""Datastores: text files that the user names, sorted once for retrieval (REST, arXiv 2311.08252), mapped from disk."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from specrun.decoding.source_files import token_files
from specrun.errors import DraftSourceError, UsageError
from specrun.speculation.sources.suffix_array import MAX_MATCH, MAX_TOKENS, SuffixArray, SuffixArraySource

_MAGIC = b"specrun.dstore 1"
_KIND = "a datastore; `specrun datastore` writes one from text files"
_CHUNK = 1 << 16  # characters that are tokenized at a time, rounded up to whole lines

Tokenize = Callable[[str], Sequence[int]]  # turns a piece of text into token ids, without special tokens
Progress = Callable[[int, int], None]  # called with the bytes read so far and the bytes of all files


def build(
    path: Path, texts: Sequence[Path], tokenize: Tokenize, fingerprint: str, progress: Progress | None = None
) -> int:
    """Write a datastore of UTF-8 text files to `path` and return its number of tokens; each takes 8 bytes on disk.

    At most MAX_TOKENS tokens fit. Sorting a million takes about half a second and 50 MB. fingerprint: of the tokenizer.
    Raises UsageError for files that cannot be used or too much text, and DraftSourceError if it cannot be written.
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
                if n_tokens + len(texts) > MAX_TOKENS:
                    most = f"{MAX_TOKENS >> 20} million tokens"
                    raise UsageError(f"these files have more than {most}, which is the most; name fewer")
                if progress:
                    progress(sum(sizes[:i]) + min(n_read, sizes[i]), sum(sizes))
            parts.append(np.concatenate(pieces) if pieces else np.zeros(0, np.int32))
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be read: {error.strerror}") from error
    array = SuffixArray.build(parts)
    token_files.write(path, _MAGIC, fingerprint, {"tokens": len(array)}, [array.tokens, array.order])
    return n_tokens


def load(path: Path, fingerprint: str) -> SuffixArraySource:
    """A draft source over the datastore at `path`. Raises DraftSourceError if the file cannot be used."""
    header, values = token_files.read(path, _MAGIC, _KIND, fingerprint)
    n = header.get("tokens")
    if not isinstance(n, int) or n < 0 or len(values) != 2 * n + MAX_MATCH:
        raise DraftSourceError(f"{path} is damaged: its arrays are not as long as its header says")
    return SuffixArraySource(SuffixArray(values[: n + MAX_MATCH], values[n + MAX_MATCH :]))


def _pieces(path: Path) -> Iterator[tuple[str, int]]:
    """Whole lines of a text file, some 65,000 characters at a time, each with the bytes read so far."""
    try:
        with path.open("rb") as file, io.TextIOWrapper(file, encoding="utf-8") as text:
            while lines := text.readlines(_CHUNK):
                yield "".join(lines), file.tell()
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text; name text files only") from error
