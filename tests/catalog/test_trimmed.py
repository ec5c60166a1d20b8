"""Trimmed drafts whose files contradict themselves are refused before llama.cpp or a draft reads them."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from specrun.catalog import embedded
from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.pairs import TOKENS, check_not_trimmed, trimmed_in
from specrun.errors import ModelFileError
from specrun.making.trimming import trim
from tests.models import edited, truncated

N = 512


@pytest.fixture
def trimmed(tmp_path: Path) -> Path:
    trim(embedded.DRAFT, N, tmp_path / "trimmed.gguf")
    return tmp_path / "trimmed.gguf"


def test_other_files_have_no_such_tokens() -> None:
    assert trimmed_in(GgufFile.read(embedded.DRAFT)) is None
    check_not_trimmed(GgufFile.read(embedded.DRAFT))


def test_a_trimmed_draft_is_told_where_a_model_is_expected(trimmed: Path) -> None:
    with pytest.raises(ModelFileError, match="is a trimmed draft, which has no tokenizer; give it as --draft"):
        check_not_trimmed(GgufFile.read(trimmed))


def test_an_architecture_that_cannot_be_trimmed(trimmed: Path, tmp_path: Path) -> None:
    other = edited(tmp_path / "other.gguf", trimmed, {"general.architecture": "gemma3n"})
    with pytest.raises(ModelFileError, match="is a trimmed gemma3n, which cannot draft; give the whole draft"):
        trimmed_in(GgufFile.read(other))


@pytest.mark.parametrize("n_bytes", [-1, -300_000])
def test_rows_that_are_missing(trimmed: Path, n_bytes: int, tmp_path: Path) -> None:
    short = GgufFile.read(truncated(tmp_path / "short.gguf", trimmed, n_bytes))
    with pytest.raises(ModelFileError, match="is incomplete, it lacks rows of its embedding; make it again"):
        trimmed_in(short)


@pytest.mark.parametrize(
    ("place", "token"), [(0, -1), (0, 5), (N - 1, 2048), (3, 2)], ids=["negative", "falls", "beyond", "twice"]
)
def test_tokens_that_are_none(trimmed: Path, place: int, token: int) -> None:
    data = bytearray(trimmed.read_bytes())
    first = data.index(TOKENS.encode()) + len(TOKENS) + 16  # behind the types and the length
    assert struct.unpack_from("<3i", data, first) == (0, 1, 2)
    struct.pack_into("<i", data, first + 4 * place, token)
    trimmed.write_bytes(data)
    with pytest.raises(ModelFileError, match=f"is broken: {TOKENS} are not the tokens of its embedding"):
        trimmed_in(GgufFile.read(trimmed))
