"""Trimmed drafts as files: draft models whose embedding and output matrix have the rows of some tokens only.

To llama.cpp such a file is a model without a tokenizer: `tokenizer.ggml.model` is `none`, and `vocab_size` is the
number of rows. The other keys of the tokenizer are those of the whole draft, so that its vocabulary can be compared
with the target's. llama.cpp refuses tensors that it does not know, but reads nothing after the last one. There lie the
rows of the embedding that were cut, so that the draft can read any token that the target commits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specrun.catalog.architectures import does
from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.gguf_header import EMBEDDING, broken
from specrun.errors import ModelFileError
from specrun.locations import file_bytes

TOKENS = "specrun.trimmed.tokens"  # the ids in the whole vocabulary of the tokens that the rows belong to, ascending
TOKENIZER = "specrun.trimmed.tokenizer"  # the whole draft's tokenizer.ggml.model
_NO_TOKENIZER = ("none", "no_vocab")  # values of tokenizer.ggml.model with which llama.cpp makes none
ALIGNMENT = 32  # bytes, of the rows after the last tensor


@dataclass(frozen=True, eq=False)
class Trimmed:
    """The tokens of a trimmed draft, and where its file has the embedding of every token.

    tokens: int64[n], ids in the whole vocabulary, ascending; row i of the draft's matrices belongs to tokens[i].
    offsets: int64[n_vocab], where the row of each token of the whole vocabulary begins in the file, in bytes.
    type: of the rows, by ggml's name. row_bytes: of each. scale: factor on an embedding that is given to llama.cpp.
    """

    tokens: NDArray[np.int64]
    offsets: NDArray[np.int64]
    type: str
    row_bytes: int
    scale: float


def is_trimmed(file: GgufFile) -> bool:
    """Whether a file holds a trimmed draft."""
    return TOKENS in file.metadata


def trimmed_in(file: GgufFile) -> Trimmed | None:
    """What a trimmed draft's file says of its tokens; None for any other file. Raises ModelFileError."""
    if not is_trimmed(file):
        return None
    if not does("trimmable", file.architecture):  # llama.cpp may end the process in a pass over embeddings
        raise ModelFileError(f"{file.path} is a trimmed {file.architecture}, which cannot draft; give the whole draft")
    tokens, table = np.array(file.metadata[TOKENS]), file.by_name.get(EMBEDDING)
    n_vocab = file.metadata.n_strings("tokenizer.ggml.tokens") or 0
    if table is None or tokens.dtype.kind != "i" or tokens.shape != table.shape[1:] or not _ascend(tokens, n_vocab):
        raise broken(str(file.path), f"{TOKENS} are not the tokens of its embedding")
    others = np.setdiff1d(np.arange(n_vocab), tokens)
    start, row_bytes = -(-file.end // ALIGNMENT) * ALIGNMENT, table.n_bytes // len(tokens)
    if file_bytes(file.path) < start + row_bytes * len(others):
        raise ModelFileError(f"{file.path} is incomplete, it lacks rows of its embedding; make it again")
    offsets = np.empty(n_vocab, np.int64)
    offsets[tokens] = table.offset + row_bytes * np.arange(len(tokens))
    offsets[others] = start + row_bytes * np.arange(len(others))
    scale = math.sqrt(file.n_embd) if does("scaled_tokens", file.architecture) else 1.0
    return Trimmed(tokens, offsets, table.type, row_bytes, scale)


def _ascend(tokens: NDArray[np.int64], n_vocab: int) -> bool:
    return bool(tokens[0] >= 0 and tokens[-1] < n_vocab and (np.diff(tokens) > 0).all())


def check_tokenizer(file: GgufFile) -> None:
    """Raise ModelFileError for a model without a tokenizer: at its first text llama.cpp would end the process."""
    kind = file.metadata.get("tokenizer.ggml.model", "none")
    if kind in _NO_TOKENIZER and not is_trimmed(file):
        raise ModelFileError(f"{file.path} has no tokenizer, without which there are no texts; choose another file")


def check_not_trimmed(file: GgufFile) -> None:
    """Raise ModelFileError for a trimmed draft where a model with a tokenizer is expected."""
    if is_trimmed(file):
        raise ModelFileError(f"{file.path} is a trimmed draft, which has no tokenizer; give it as --draft")
