"""Whether a draft fits a target: how their tokenizers differ, and their sizes; and trimmed drafts as files.

Trimmed drafts are draft models whose embedding and output matrix have the rows of some tokens only. To llama.cpp such a
file is a model without a tokenizer: `tokenizer.ggml.model` is `none`, and `vocab_size` is the number of rows. The
other keys of the tokenizer are those of the whole draft, so that its vocabulary can be compared with the target's.
llama.cpp refuses tensors that it does not know, but reads nothing after the last one. There lie the rows of the
embedding that were cut, so that the draft can read any token that the target commits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specrun.catalog.entries import Entry, does
from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.gguf_header import EMBEDDING, broken
from specrun.display_text import size_text
from specrun.errors import ModelFileError, PairError
from specrun.locations import file_bytes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

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
    import numpy as np

    if not is_trimmed(file):
        return None
    if not does("trimmable", file.architecture):  # llama.cpp may end the process in a pass over embeddings
        raise ModelFileError(f"{file.path} is a trimmed {file.architecture}, which cannot draft; give the whole draft")
    tokens, table = np.array(file.metadata[TOKENS]), file.by_name.get(EMBEDDING)
    n_vocab = file.metadata.n_strings("tokenizer.ggml.tokens") or 0
    is_list = table is not None and tokens.dtype.kind == "i" and tokens.shape == table.shape[1:]
    if not is_list or tokens[0] < 0 or tokens[-1] >= n_vocab or (np.diff(tokens) <= 0).any():
        raise broken(str(file.path), f"{TOKENS} are not the tokens of its embedding")
    assert table
    others = np.setdiff1d(np.arange(n_vocab), tokens)
    start, row_bytes = -(-file.end // ALIGNMENT) * ALIGNMENT, table.n_bytes // len(tokens)
    if file_bytes(file.path) < start + row_bytes * len(others):
        raise ModelFileError(f"{file.path} is incomplete, it lacks rows of its embedding; make it again")
    offsets = np.empty(n_vocab, np.int64)
    offsets[tokens] = table.offset + row_bytes * np.arange(len(tokens))
    offsets[others] = start + row_bytes * np.arange(len(others))
    scale = math.sqrt(file.n_embd) if does("scaled_tokens", file.architecture) else 1.0
    return Trimmed(tokens, offsets, table.type, row_bytes, scale)


def check_tokenizer(file: GgufFile) -> None:
    """Raise ModelFileError for a model without a tokenizer: at its first text llama.cpp would end the process."""
    kind = file.metadata.get("tokenizer.ggml.model", "none")
    if kind in _NO_TOKENIZER and not is_trimmed(file):
        raise ModelFileError(f"{file.path} has no tokenizer, without which there are no texts; choose another file")


def check_not_trimmed(file: GgufFile) -> None:
    """Raise ModelFileError for a trimmed draft where a model with a tokenizer is expected."""
    if is_trimmed(file):
        raise ModelFileError(f"{file.path} is a trimmed draft, which has no tokenizer; give it as --draft")


# Tokenizers for which llama.cpp adds BOS if the file does not say whether to (src/llama-vocab.cpp).
_KINDS_WITH_BOS = ("llama", "bert")
_PRES_WITH_BOS = ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2")


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer. Two models that share it have the same ids."""

    kind: str  # tokenizer.ggml.model, e.g. `gpt2` for byte-pair encoding
    pre: str  # tokenizer.ggml.pre: how text is split before it is tokenized
    bos: int | None  # id of the token that begins every text; None if there is none
    tokens: tuple[bytes, ...]  # by id


@dataclass(frozen=True)
class FileVocabulary(Vocabulary):
    """The tokenizer in a file, and what only influences how often drafted tokens are accepted."""

    eos: int | None  # id of the token that ends a text; None if there is none
    chat_template: str | None
    types: tuple[int, ...] = ()  # by id, llama.cpp's numbers: 1 for text, 3 for control tokens, 6 for bytes


def read_vocabulary(file: GgufFile) -> FileVocabulary:
    """The vocabulary of a model file, of a trimmed draft the whole one; takes 0.2 s for 150,000 tokens."""
    metadata = file.metadata
    kind = str(metadata.get(TOKENIZER) or metadata.get("tokenizer.ggml.model", "none"))
    pre = str(metadata.get("tokenizer.ggml.pre", "default"))
    adds_bos = metadata.get("tokenizer.ggml.add_bos_token", kind in _KINDS_WITH_BOS or pre in _PRES_WITH_BOS)
    tokens = metadata.get("tokenizer.ggml.tokens", ())
    types = metadata.get("tokenizer.ggml.token_type", ())
    return FileVocabulary(
        kind=kind,
        pre=pre,
        bos=metadata.get("tokenizer.ggml.bos_token_id") if adds_bos else None,
        tokens=tuple(token.encode() for token in tokens),
        eos=metadata.get("tokenizer.ggml.eos_token_id"),
        chat_template=file.chat_template,
        types=tuple(types) if isinstance(types, list) and len(types) == len(tokens) else (1,) * len(tokens),
    )


def check_sizes(target: int, draft: int) -> None:
    """Raise PairError if the draft is bigger than the target; both in bytes."""
    if draft > target:
        sizes = f"the draft ({size_text(draft)}) is bigger than the target ({size_text(target)})"
        raise PairError(f"{sizes}; swap --target and --draft")


def check_families(target: Entry | None, draft: Entry | None) -> None:
    """Raise PairError if the catalog knows that two models have different tokenizers, but not what these share."""
    if target and draft and target.family and draft.family not in (None, target.family):
        if draft.alias in target.other_drafts:
            return
        raise PairError(
            f"{draft.alias} has another tokenizer than {target.alias} (their families are {draft.family} and "
            f"{target.family}), and how much text they share is known once it is here; `specrun models pairs "
            f"{target.alias}` lists what fits, `specrun pull {draft.alias}` fetches it anyway"
        )


def first_difference(target: Vocabulary, draft: Vocabulary) -> str | None:
    """How the tokenizers differ, by the ids that both have (families pad them); None if ids mean the same to both."""
    if target.kind != draft.kind:
        return f"the target's tokenizer is {target.kind}, the draft's {draft.kind}"
    common = min(len(target.tokens), len(draft.tokens))
    if target.tokens[:common] != draft.tokens[:common]:
        first = next(i for i in range(common) if target.tokens[i] != draft.tokens[i])
        ours, theirs = (repr(model.tokens[first].decode("utf-8", errors="replace")) for model in (target, draft))
        return f"token {first} is {ours} in the target and {theirs} in the draft"
    if target.pre != draft.pre:
        return f"the target splits text as {target.pre}, the draft as {draft.pre}"
    if target.bos != draft.bos:
        ours, theirs = ("no token" if bos is None else f"token {bos}" for bos in (target.bos, draft.bos))
        return f"the target begins a text with {ours}, the draft with {theirs}"
    return None


def warnings(target: FileVocabulary, draft: FileVocabulary) -> tuple[str, ...]:
    """Clauses that say why a fitting draft may guess badly. The output is the target's in any case."""
    reasons = []
    if target.eos != draft.eos:
        reasons.append(f"the target ends a text with token {target.eos}, the draft with {draft.eos}")
    if target.chat_template and not draft.chat_template:
        reasons.append("the draft has no chat template: it was not trained to chat")
    elif target.chat_template != draft.chat_template:
        reasons.append("the draft was trained with another chat template")
    return tuple(reasons)
