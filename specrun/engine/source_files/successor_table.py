"""The successor table of `TokenRecycling`, kept on disk between sessions."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from specrun.engine.source_files import token_files
from specrun.engine.source_files.token_files import DamagedTokensError
from specrun.errors import DraftSourceError
from specrun.speculation.sources.recycling import N_SUCCESSORS, TokenRecycling

_MAGIC = b"specrun.recycl 1"
_KIND = "a table of successors written by specrun"


def save(path: Path, table: TokenRecycling, fingerprint: str) -> None:
    """Write a table atomically, with the rows of other tokens that another session has saved meanwhile.

    fingerprint: of the tokenizer. Raises DraftSourceError.
    """
    with token_files.alone(path):
        tokens, successors = _with_rows_of(path, table, fingerprint).rows()
        header = {"n_vocab": table.n_vocab, "rows": len(tokens)}
        token_files.write(path, _MAGIC, fingerprint, header, [tokens, successors], private=True)


def _with_rows_of(path: Path, table: TokenRecycling, fingerprint: str) -> TokenRecycling:
    """The rows in the file, if it can be used, and those of the table, which replace them."""
    if not path.exists():
        return table
    try:
        both = load(path, fingerprint, table.n_vocab)
    except DraftSourceError:
        return table  # it was said when the session began
    both.take_rows(*table.rows())
    return both


def load(path: Path, fingerprint: str, n_vocab: int) -> TokenRecycling:
    """The table that `save` wrote. Raises the errors of `token_files.read`."""
    header, values = token_files.read(path, _MAGIC, _KIND, fingerprint)
    values = np.array(values)  # Windows neither renames nor replaces a file that is mapped
    n = len(values) // (1 + N_SUCCESSORS)
    if header.get("n_vocab") != n_vocab or header.get("rows") != n or len(values) != n * (1 + N_SUCCESSORS):
        raise DamagedTokensError(f"{path} was made for another vocabulary than this target's; make it again")
    if ((values < 0) | (values >= n_vocab)).any():
        raise DamagedTokensError(f"{path} is damaged: it holds tokens outside the vocabulary")
    table = TokenRecycling(n_vocab)
    table.take_rows(values[:n], values[n:].reshape(n, N_SUCCESSORS))
    return table
