"""Datastores give the guesses of a suffix array over the same texts, and files that cannot be used are explained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from specrun.decoding.source_files import datastore_file
from specrun.errors import DraftSourceError, UsageError
from specrun.speculation.sources.suffix_array import SuffixArray, SuffixArraySource


def tokenize(text: str) -> list[int]:
    return list(text.encode())


def test_files_become_a_datastore(tmp_path: Path) -> None:
    names = ["a.txt", "b.txt", "empty.txt"]
    contents = ["one two three\n" * 9000, "été\r\none two four\n", ""]
    for name, content in zip(names, contents, strict=True):
        (tmp_path / name).write_bytes(content.encode())
    seen: list[tuple[int, int]] = []
    paths = [tmp_path / name for name in names]
    n = datastore_file.build(tmp_path / "new" / "store", paths, tokenize, "tok", lambda *done: seen.append(done))
    n_bytes = sum(len(content.encode()) for content in contents)
    assert n == n_bytes - 1  # the carriage return
    assert seen == sorted(seen)
    assert len(seen) > 2
    assert seen[-1] == (n_bytes, n_bytes)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["store"]
    source = datastore_file.load(tmp_path / "new" / "store", "tok")
    texts = [tokenize(content.replace("\r\n", "\n")) for content in contents]
    fresh = SuffixArraySource(SuffixArray.build([np.array(text, np.int32) for text in texts]))
    for phrase in ("one two ", "é", "t", "three\none", "zzz"):
        assert source.guesses(tokenize(phrase), 9) == fresh.guesses(tokenize(phrase), 9)
    assert chr(source.guesses(tokenize("été\none two "), 1)[0].token) == "f"


def test_a_text_file_that_cannot_be_used_is_told_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, store = tmp_path / "text", tmp_path / "store"
    text.write_bytes(b"abc\xff")
    for paths, message in (
        ([], "at least one"),
        ([text], "is not UTF-8"),
        ([tmp_path / "missing"], "missing cannot be read: No such file"),
        ([tmp_path], "cannot be read"),
    ):
        with pytest.raises(UsageError, match=message):
            datastore_file.build(store, paths, tokenize, "tok")
    text.write_text("abc" * 10)
    monkeypatch.setattr(datastore_file, "MAX_TOKENS", 20)
    with pytest.raises(UsageError, match="name fewer"):
        datastore_file.build(store, [text], tokenize, "tok")
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


def test_a_file_that_is_no_datastore_for_this_tokenizer_is_refused(tmp_path: Path) -> None:
    text, store = tmp_path / "text", tmp_path / "store"
    text.write_text("one two three")
    datastore_file.build(store, [text], tokenize, "tok")
    with pytest.raises(DraftSourceError, match="another tokenizer"):
        datastore_file.load(store, "other")
    with pytest.raises(DraftSourceError, match="is not a datastore"):
        datastore_file.load(text, "tok")
    whole = store.read_bytes()
    for content in (whole[:-4], whole.replace(b'"tokens": 14', b'"tokens": 13'), whole[:40]):
        store.write_bytes(content)
        with pytest.raises(DraftSourceError, match="damaged"):
            datastore_file.load(store, "tok")
