"""Which tokens a trimmed draft keeps, what its file holds, and which files cannot be trimmed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from specrun.catalog import embedded
from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.pairs import read_vocabulary, trimmed_in
from specrun.errors import ModelFileError, SpecrunError, UsageError
from specrun.making.trimming import kept_tokens, trim, worthwhile
from tests.dense_models import random_dense
from tests.models import TOKEN_TYPES, TOKENS, Reader, edited, random_llama, random_mamba, split, tokenizer, truncated

N = 1024


@pytest.fixture(scope="module")
def trimmed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trimmed") / "trimmed.gguf"
    trim(embedded.DRAFT, N, path)
    return path


def test_special_tokens_bytes_and_ascii_are_kept_and_then_the_lowest_ids(tmp_path: Path) -> None:
    values = tokenizer()
    names, types = list(values[TOKENS]), list(values[TOKEN_TYPES])
    for token, kind in ((1990, gguf.TokenType.CONTROL), (1991, gguf.TokenType.BYTE), (1992, gguf.TokenType.UNUSED)):
        types[token] = int(kind)
    names[1993], names[1994], names[names.index("a")] = "a", "ä", "was a"
    file = GgufFile.read(edited(tmp_path / "draft.gguf", embedded.DRAFT, {TOKENS: names, TOKEN_TYPES: types}))
    kept = kept_tokens(file, 1000)
    assert len(kept) == 1000
    assert {1990, 1991, 1993} < set(kept.tolist())
    assert not {1992, 1994} & set(kept.tolist())
    assert kept.tolist() == [*range(997), 1990, 1991, 1993]


def test_the_file_holds_all_rows_of_the_embedding(trimmed: Path) -> None:
    described = trimmed_in(GgufFile.read(trimmed))
    assert described
    whole = next(tensor for tensor in Reader(embedded.DRAFT).tensors if tensor.name == "token_embd.weight")
    data = trimmed.read_bytes()
    rows = [data[offset : offset + described.row_bytes] for offset in described.offsets.tolist()]
    assert rows == [row.tobytes() for row in whole.data]
    assert described.type == "Q8_0"


def test_all_else_is_the_whole_drafts(trimmed: Path) -> None:
    before, after = Reader(embedded.DRAFT), Reader(trimmed)
    tensors = {tensor.name: tensor.data for tensor in after.tensors}
    for tensor in before.tensors:
        expected = tensor.data[:N] if tensor.name == "token_embd.weight" else tensor.data
        np.testing.assert_array_equal(tensors[tensor.name], expected)
    assert len(tensors) == len(before.tensors)
    assert after.fields["tokenizer.ggml.model"].contents() == "none"
    assert after.fields["llama.vocab_size"].contents() == N
    assert read_vocabulary(GgufFile.read(trimmed)) == read_vocabulary(GgufFile.read(embedded.DRAFT))


def test_a_split_draft_becomes_one_file(tmp_path: Path) -> None:
    draft = random_dense(tmp_path / "draft.gguf", "qwen2", is_tied=False)
    trim(draft, N, tmp_path / "one.gguf")
    trim(split(tmp_path / "shards.gguf", draft, 3), N, tmp_path / "three.gguf")
    one, three = ({t.name: t.data for t in Reader(tmp_path / name).tensors} for name in ("one.gguf", "three.gguf"))
    assert one.keys() == three.keys()
    assert all(np.array_equal(one[name], three[name]) for name in one)
    assert GgufFile.read(tmp_path / "three.gguf").shards == (tmp_path / "three.gguf",)


@pytest.mark.parametrize("n", [0, 3, 2048, 10**9])
def test_impossible_numbers_of_tokens(n: int, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--vocab must be a number of tokens above \d+, .* and below its 2,048; got"):
        trim(embedded.DRAFT, n, tmp_path / "trimmed.gguf")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: edited(path, embedded.HEAD, {}), "an EAGLE-3 head, which writes nothing by itself"),
        (random_mamba, "is mamba, and only drafts of gemma3, llama, qwen2, qwen3 can be trimmed"),
        (lambda path: edited(path, embedded.DRAFT, {TOKENS: None}), "has no row of its embedding for each token"),
        (lambda path: edited(path, embedded.DRAFT, {TOKENS: ["a"]}), "has no row of its embedding for each token"),
        (lambda path: edited(path, embedded.DRAFT, {TOKEN_TYPES: [1]}), "2048 tokens, but not as many"),
        (lambda path: truncated(path, embedded.DRAFT, 200_000), "is incomplete"),
    ],
    ids=["head", "architecture", "no tokens", "few tokens", "few types", "truncated"],
)
def test_files_that_cannot_be_trimmed(make: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=message) as error:
        trim(make(tmp_path / "draft.gguf"), N, tmp_path / "trimmed.gguf")
    assert "\n" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["draft.gguf"]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> GgufFile:
    """A draft with 22,048 tokens."""
    path = random_llama(tmp_path_factory.mktemp("large") / "draft.gguf", vocab_extra=20_000)
    return GgufFile.read(path)


@pytest.mark.parametrize(
    ("written", "n"),
    [
        (range(2000), 8192),
        ([*range(2000), 9000, 25_000], 8192),  # one in 2,000 it need not have, nor one that the whole draft lacks
        ([*range(1000), 9000, 9001], 16384),
        ([*range(500), 20_000], None),
        ([], None),
    ],
)
def test_what_tune_trims_has_nearly_all_tokens_that_the_target_writes(
    large: GgufFile, written: list[int], n: int | None
) -> None:
    assert worthwhile(large, written) == n


def test_what_the_target_writes_is_kept(large: GgufFile) -> None:
    assert {20_000, 20_001} < set(kept_tokens(large, 8192, [20_001, 20_000, 25_000]).tolist())
    assert 20_000 not in kept_tokens(large, 8192)


@pytest.mark.slow
def test_a_draft_that_would_hardly_be_faster_is_not_trimmed(large: GgufFile, trimmed: Path, tmp_path: Path) -> None:
    deep = random_llama(tmp_path / "deep.gguf", vocab_extra=20_000, n_layer=12, n_ff=4096)
    for path in (embedded.DRAFT, embedded.HEAD, trimmed, deep, random_mamba(tmp_path / "mamba.gguf")):
        assert worthwhile(GgufFile.read(path), range(2000)) is None, path
    assert worthwhile(large, range(2000))


def test_a_trimmed_draft_is_not_trimmed_again(trimmed: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="is a trimmed draft"):
        trim(trimmed, 512, tmp_path / "again.gguf")


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("specrun.making.trimming._copy", full)
    with pytest.raises(SpecrunError, match=r"cannot be written: No space left on device; free some room or choose"):
        trim(embedded.DRAFT, N, tmp_path / "trimmed.gguf")
    assert not any(tmp_path.iterdir())
