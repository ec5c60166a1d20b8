"""Trims a draft model: writes it with the embedding and output of some tokens only (specrun.catalog.pairs)."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from specrun.catalog.entries import TABLES, does
from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.gguf_header import EMBEDDING, OUTPUT, TensorInfo, broken
from specrun.catalog.heads import check_no_head, head_in
from specrun.catalog.pairs import ALIGNMENT, TOKENIZER, TOKENS, check_not_trimmed, check_tokenizer, is_trimmed
from specrun.errors import ModelFileError, UsageError, disk_errors
from specrun.locations import whole_file

_CUT = (EMBEDDING, OUTPUT, "output.bias")  # tensors with a row for each token
_MODEL, _TYPES = "tokenizer.ggml.model", "tokenizer.ggml.token_type"
_NORMAL, _UNUSED = 1, 5  # llama_token_type
_SIZES = (8192, 16384, 32768, 65536)  # tokens of the drafts that `specrun tune` makes
_COVERED = 0.999  # of the tokens that a target writes, which its trimmed draft should have
_SAVED = 0.1  # of the bytes that a draft pass reads; less is within the noise of most machines
_CHUNK = 2**24  # bytes that are copied at a time
_UINT32, _STRING, _ARRAY, _INT32 = 4, 8, 9, 5  # gguf_metadata_value_type

Bytes = NDArray[np.uint8]
TokenIds = NDArray[np.int64]


def trim(draft: Path, n: int, output: Path, written: Sequence[int] = ()) -> TokenIds:
    """Write a draft model with `n` tokens to `output`, whole or not at all, and return these tokens, ascending.

    written: tokens that are kept in any case, because the target has written them.
    Raises ModelFileError for a file that cannot be trimmed, UsageError for an impossible `n`, and SpecrunError if
    `output` cannot be written.
    """
    file = GgufFile.read(draft)
    _check(file)
    tokens = kept_tokens(file, n, written)
    with (
        disk_errors("written; free some room or choose another folder with --output", output),
        whole_file(output) as out,
    ):
        _write(out, file, tokens)
    return tokens


def worthwhile(file: GgufFile, written: Sequence[int]) -> int | None:
    """How many tokens a trimmed draft should have, by what the target wrote; None where trimming would save little.

    Raises ModelFileError for a file whose tokens cannot be read.
    """
    n_vocab, written = file.n_vocab, [token for token in written if token < file.n_vocab]
    if not does("trimmable", file.architecture) or is_trimmed(file) or head_in(file) or not written:
        return None
    n_read = file.n_bytes - (0 if file.is_tied else file.embedding_bytes)
    for n in (n for n in _SIZES if (1 - n / n_vocab) * file.output_bytes >= _SAVED * n_read):
        with suppress(UsageError):  # more are kept in any case
            if np.isin(written, kept_tokens(file, n)).mean() >= _COVERED:
                return n
    return None


def kept_tokens(file: GgufFile, n: int, written: Sequence[int] = ()) -> TokenIds:
    """The `n` tokens that are kept, ascending. Raises UsageError if these are too few or all.

    Tokens that are no ordinary text (such as the ends of a turn, and bytes) are kept in any case, and those of one
    ASCII character, which SentencePiece puts last, and `written` ones. The others are taken in the order of their ids:
    tokenizers merge what is frequent first, and give it the lowest ids.
    """
    names = file.metadata["tokenizer.ggml.tokens"]
    types = np.array(file.metadata.get(_TYPES, [_NORMAL] * len(names)))
    if types.shape != (len(names),):
        raise broken(str(file.path), f"it has {len(names)} tokens, but not as many {_TYPES}")
    is_needed = ~np.isin(types, (_NORMAL, _UNUSED)) | [len(name) == 1 and name.isascii() for name in names]
    is_needed[[token for token in written if token < len(names)]] = True
    least = np.count_nonzero(is_needed)
    if not least < n < len(names):
        limits = f"above {least:,}, which are kept in any case, and below its {len(names):,}"
        raise UsageError(f"--vocab must be a number of tokens {limits}; got {n:,}")
    return np.sort(np.argsort(~is_needed, kind="stable")[:n])


def _check(file: GgufFile) -> None:
    check_no_head(file)
    check_not_trimmed(file)
    check_tokenizer(file)
    table = file.by_name.get(EMBEDDING)
    if not does("trimmable", file.architecture):
        known = ", ".join(sorted(TABLES["trimmable"]))
        raise ModelFileError(f"{file.path} is {file.architecture}, and only drafts of {known} can be trimmed")
    n_vocab = file.metadata.n_strings("tokenizer.ggml.tokens")
    if table is None or n_vocab is None or table.shape[1:] != (n_vocab,) or _MODEL not in file.metadata:
        raise ModelFileError(f"{file.path} has no row of its embedding for each token; choose another draft")
    import gguf

    try:  # what the draft reads in place of tokens that it lacks
        gguf.quants.dequantize(rows_of(file, table)[:1], gguf.GGMLQuantizationType[table.type])
    except (NotImplementedError, KeyError) as error:
        raise ModelFileError(f"{file.path} has an embedding in {table.type}, which cannot be read by rows") from error


def rows_of(file: GgufFile, tensor: TensorInfo) -> Bytes:
    """uint8[rows, bytes of a row]: a tensor as it lies in its file, along its last dimension; not yet read."""
    shape = tensor.shape[-1], tensor.n_bytes // tensor.shape[-1]
    mapped = np.memmap(file.shards[tensor.file], np.uint8, "r", tensor.offset, shape)
    return np.asarray(mapped)


def _write(out: BinaryIO, file: GgufFile, tokens: TokenIds) -> None:
    values = dict(_values(file, tokens))
    out.write(struct.pack("<4sIQQ", b"GGUF", 3, len(file.tensors), len(values)))
    for key, value in values.items():
        out.write(_text(key) + value)
    offset = 0
    for tensor in file.tensors:
        described, n_bytes = _described(tensor, offset, len(tokens))
        out.write(described)
        offset += _aligned(n_bytes)
    _pad(out)
    for tensor in file.tensors:
        rows = rows_of(file, tensor)
        _copy(out, rows, tokens if tensor.name in _CUT else np.arange(len(rows)))
        _pad(out)
    table = rows_of(file, file.by_name[EMBEDDING])
    _copy(out, table, np.setdiff1d(np.arange(len(table)), tokens))


def _values(file: GgufFile, tokens: TokenIds) -> Iterator[tuple[str, bytes]]:
    """The metadata of the trimmed draft, encoded."""
    metadata, size = file.metadata, f"{file.architecture}.vocab_size"
    changed = {
        _MODEL: struct.pack("<I", _STRING) + _text("none"),
        TOKENIZER: metadata.encoded(_MODEL),
        TOKENS: struct.pack("<IIQ", _ARRAY, _INT32, len(tokens)) + tokens.astype("<i4").tobytes(),
        size: struct.pack("<II", _UINT32, len(tokens)),
        "general.alignment": struct.pack("<II", _UINT32, ALIGNMENT),
    }
    for key in metadata:
        if key not in changed and not key.startswith("split."):  # it is one file
            yield key, metadata.encoded(key)
    yield from changed.items()


def _described(tensor: TensorInfo, offset: int, n_tokens: int) -> tuple[bytes, int]:
    """A tensor as the header describes it at `offset` after the header, and its bytes."""
    from gguf import GGMLQuantizationType

    is_cut = tensor.name in _CUT
    shape = (*tensor.shape[:-1], n_tokens) if is_cut else tensor.shape
    n_bytes = tensor.n_bytes // tensor.shape[-1] * shape[-1]
    numbers = struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, GGMLQuantizationType[tensor.type], offset)
    return _text(tensor.name) + numbers, n_bytes


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _aligned(n_bytes: int) -> int:
    return -(-n_bytes // ALIGNMENT) * ALIGNMENT


def _pad(out: BinaryIO) -> None:
    out.write(bytes(_aligned(out.tell()) - out.tell()))


def _copy(out: BinaryIO, rows: Bytes, chosen: TokenIds) -> None:
    """Write the chosen rows, so many at a time that little memory is taken."""
    n_each = max(_CHUNK // rows.shape[1], 1)
    for start in range(0, len(chosen), n_each):
        out.write(rows[chosen[start : start + n_each]].tobytes())
