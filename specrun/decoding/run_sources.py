"""The draft sources of a loaded model. With `--history` they learn from earlier sessions and are saved at the end."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from specrun.catalog.pairs import read_vocabulary
from specrun.decoding.source_files import datastore_file, token_files
from specrun.decoding.source_files.history import History
from specrun.decoding.source_files.token_files import DamagedTokensError
from specrun.errors import DraftSourceError
from specrun.llama import LlamaModel
from specrun.locations import data_dir, private_folder, set_aside
from specrun.speculation.sources.lookahead import NgramPool
from specrun.speculation.sources.ngram import PromptLookup
from specrun.speculation.sources.recycling import N_SUCCESSORS, TokenRecycling
from specrun.speculation.sources.source import Source
from specrun.speculation.sources.source_set import SourceSet
from specrun.speculation.sources.suffix_automaton import SuffixAutomaton


def fingerprint(model: LlamaModel) -> str:
    """16 hexadecimal digits that identify a model's tokenizer. Files of token ids are valid for one tokenizer."""
    vocabulary = read_vocabulary(model.file)
    digest = hashlib.sha256(f"{vocabulary.kind} {vocabulary.pre}".encode())
    for token in vocabulary.tokens:
        digest.update(token + b"\0")
    return digest.hexdigest()[:16]


class RunSources:
    """All draft sources of a loaded model; `set` holds them."""

    def __init__(self, model: LlamaModel, store: Path | None, history: bool, note: Callable[[str], None]) -> None:
        """store: a file of `specrun datastore`; None for none. history: whether to draft from earlier sessions, and let
        `close` save this one. note: called with a message about each file of earlier sessions that cannot be used.

        Raises DraftSourceError for a datastore that cannot be used.
        """
        self._history: History | None = None
        self._table: Path | None = None
        self._recycling = TokenRecycling(model.n_vocab)
        sources: dict[str, Source] = {
            "prompt-lookup": PromptLookup(),
            "suffix-automaton": SuffixAutomaton(),
            "lookahead": NgramPool(),
        }
        if store or history:
            self._fingerprint = fingerprint(model)
        if store:
            sources["rest"] = datastore_file.load(store, self._fingerprint)
        if history:
            folder = data_dir() / "history"
            try:
                private_folder(folder)
            except OSError as error:
                note(f"{folder} cannot be kept private: {error.strerror}")
            self._history = History(folder, self._fingerprint)
            self._table = folder / f"successors-{self._fingerprint}.tokens"
            if self._history.problem:
                note(self._history.problem)
            if self._history.texts:
                sources["history"] = self._history.source()
            try:
                if self._table.exists():
                    self._recycling = load_successors(self._table, self._fingerprint, model.n_vocab)
            except DamagedTokensError as error:
                note(f"{error}; it is {set_aside(self._table)}, and a new one is begun")
            except DraftSourceError as error:
                note(str(error))
        sources["token-recycling"] = self._recycling
        self.set = SourceSet(sources, history=history)

    def close(self) -> None:
        """With `history`, save the texts and the successor table. Raises DraftSourceError if they cannot be written."""
        if self._history is None or self._table is None:
            return
        for text in self.set.finished_texts():
            self._history.add(text)
        if len(self._recycling):
            save_successors(self._table, self._recycling, self._fingerprint)
        self._history = None


_MAGIC = b"specrun.recycl 1"
_KIND = "a table of successors written by specrun"


def save_successors(path: Path, table: TokenRecycling, fingerprint: str) -> None:
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
        both = load_successors(path, fingerprint, table.n_vocab)
    except DraftSourceError:
        return table  # it was said when the session began
    both.take_rows(*table.rows())
    return both


def load_successors(path: Path, fingerprint: str, n_vocab: int) -> TokenRecycling:
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
