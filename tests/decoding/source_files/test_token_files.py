"""Files of draft sources are written whole or not at all, and a file that cannot be used is explained in one line."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from specrun.decoding.source_files import token_files
from specrun.errors import DraftSourceError

MAGIC = b"0123456789abcdef"
TOKENIZER = "tok"
ARRAY = np.arange(100, dtype=np.int32)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    token_files.write(tmp_path / "f", MAGIC, TOKENIZER, {"a": ["é"]}, [ARRAY, ARRAY[:3], ARRAY[::10]])
    header, values = token_files.read(tmp_path / "f", MAGIC, "a test", TOKENIZER)
    assert header["a"] == ["é"]
    assert values.tolist() == [*range(100), 0, 1, 2, *range(0, 100, 10)]
    assert values.dtype == np.int32
    token_files.write(tmp_path / "f", MAGIC, TOKENIZER, {}, [])
    assert len(token_files.read(tmp_path / "f", MAGIC, "a test", TOKENIZER)[1]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_a_private_file_is_its_owners_alone(tmp_path: Path) -> None:
    token_files.write(tmp_path / "private", MAGIC, TOKENIZER, {}, [ARRAY], private=True)
    assert (tmp_path / "private").stat().st_mode & 0o777 == 0o600


def test_a_full_disk_leaves_what_was_there_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    token_files.write(tmp_path / "old", MAGIC, TOKENIZER, {}, [ARRAY])
    monkeypatch.setattr("os.fsync", full)
    for name in ("old", "new"):
        with pytest.raises(DraftSourceError, match=r"cannot be written: No space left on device$"):
            token_files.write(tmp_path / name, MAGIC, TOKENIZER, {}, [ARRAY, ARRAY])
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert len(token_files.read(tmp_path / "old", MAGIC, "a test", TOKENIZER)[1]) == 100


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path, tmp_path / "file" / "f"):
        with pytest.raises(DraftSourceError, match="cannot be written"):
            token_files.write(place, MAGIC, TOKENIZER, {}, [ARRAY])


@pytest.mark.slow
def test_every_shorter_or_longer_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "f"
    token_files.write(file, MAGIC, TOKENIZER, {"b": 1}, [ARRAY])
    whole = file.read_bytes()
    for n in (*range(140), len(whole) - 4, len(whole) - 1):
        file.write_bytes(whole[:n])
        with pytest.raises(DraftSourceError, match="is not a test" if n < len(MAGIC) else "damaged"):
            token_files.read(file, MAGIC, "a test", TOKENIZER)
    file.write_bytes(whole + b"\0\0\0\0")
    with pytest.raises(DraftSourceError, match="damaged"):
        token_files.read(file, MAGIC, "a test", TOKENIZER)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"GGUF\3\0\0\0",
        MAGIC + b"xxxxxxxx        ",
        MAGIC + b"-0000001        ",
        MAGIC + b"00000002        {}",
        MAGIC + b"00000002        []",
        MAGIC + b'00000014        {"int32s": -1}',
        MAGIC + b'00000016        {"int32s": null}',
        MAGIC + b"00000004        \xff\xff\xff\xff",
    ],
)
def test_a_foreign_file_is_told_in_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(DraftSourceError, match=r"is not a test|damaged") as error:
        token_files.read(tmp_path / "f", MAGIC, "a test", TOKENIZER)
    assert "\n" not in str(error.value)
