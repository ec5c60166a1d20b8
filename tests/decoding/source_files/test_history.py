"""Histories are kept by tokenizer and bounded; a file that cannot be used counts as none."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import numpy as np
import pytest

from specrun import locations
from specrun.decoding.source_files.history import History
from specrun.errors import DraftSourceError


def texts(history: History) -> list[list[int]]:
    return [text.tolist() for text in history.texts]


def test_what_was_added_is_there_in_the_next_session(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "yet"
    assert History(folder, "tok").source().guesses([1], 3) == []
    History(folder, "tok").add([1, 2, 3])
    History(folder, "tok").add([4, 5])
    again = History(folder, "tok")
    assert texts(again) == [[1, 2, 3], [4, 5]]
    assert again.problem == ""
    source = again.source()
    source.extend([9, 1, 2])
    assert [guess.token for guess in source.guesses([], 3)] == [3]
    assert source.guesses([3], 3) == []  # the next text follows nothing
    assert texts(History(folder, "other")) == []


def test_two_sessions_at_once_keep_each_others_texts(tmp_path: Path) -> None:
    first, second = History(tmp_path, "tok"), History(tmp_path, "tok")
    first.add([1])
    second.add([2, 3])
    first.add([])
    assert texts(first) == texts(History(tmp_path, "tok")) == [[1], [2, 3], []]


def test_the_oldest_go_first(tmp_path: Path) -> None:
    history = History(tmp_path, "tok", max_tokens=10)
    for n in range(1, 6):
        history.add([n] * 4)
    assert texts(history) == texts(History(tmp_path, "tok")) == [[4] * 4, [5] * 4]
    history.add(range(100))
    assert texts(history) == [list(range(90, 100))]
    assert history.path.stat().st_size < 400


def test_a_damaged_file_is_empty_with_a_reason_and_is_replaced(tmp_path: Path) -> None:
    history = History(tmp_path, "tok")
    history.add([1, 2, 3])
    whole = history.path.read_bytes()
    lengths = np.frombuffer(whole[-16:], np.int32)
    assert lengths.tolist() == [3, 1, 2, 3]
    too_long, negative = (np.array(values, np.int32).tobytes() for values in ([4, 1, 2, 3], [3, 1, -2, 3]))
    for content in (b"", b"something else", whole[:-1], whole[:-16] + too_long, whole[:-16] + negative):
        history.path.write_bytes(content)
        damaged = History(tmp_path, "tok")
        assert texts(damaged) == []
        assert str(history.path) in damaged.problem
        assert "\n" not in damaged.problem
        aside = damaged.path.with_name(f"{damaged.path.name}.damaged")
        assert str(aside) in damaged.problem
        assert aside.read_bytes() == content
    damaged.add([7])
    assert damaged.problem == History(tmp_path, "tok").problem == ""
    assert texts(History(tmp_path, "tok")) == [[7]]


def test_a_folder_that_cannot_be_read_is_empty_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "exists", refuse)
    history = History(tmp_path, "tok")
    assert texts(history) == []
    assert history.problem == f"{history.path} cannot be read: Permission denied"


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DraftSourceError, match="cannot be written"):
        History(tmp_path / "file", "tok").add([1])


def test_only_the_user_can_read_it(tmp_path: Path) -> None:
    folder = tmp_path / "history"
    folder.mkdir()
    folder.chmod(0o755)
    (folder / "older.tokens").touch(mode=0o644)
    before = os.umask(0)
    try:
        History(folder, "tok").add([1])
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def test_a_folder_that_another_process_keeps_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locations, "_LOCK_SECONDS", 0.01)
    with locations.locked(tmp_path), pytest.raises(DraftSourceError, match="another specrun has been writing"):
        History(tmp_path, "tok").add([1])
