"""Files that are written whole or not at all, damaged ones that are set aside, and facts that come back."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import platformdirs
import pytest

from specrun.errors import PromptError, SpecrunError
from specrun.locations import (
    data_dir,
    encode,
    given_json,
    json_text,
    parse_json,
    set_aside,
    typed,
    whole_file,
)


def write(path: Path, text: str) -> None:
    with whole_file(path) as file:
        file.write(text.encode())


def test_threads_that_write_the_same_file_do_not_mix_their_texts(tmp_path: Path) -> None:
    path = tmp_path / "file"
    texts = [letter * 100_000 for letter in "abcd"]
    failures: list[Exception] = []

    def write_often(text: str) -> None:
        try:
            for _ in range(20):
                write(path, text)
                assert path.read_text() in texts
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=write_often, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    file, link = tmp_path / "folder" / "file", tmp_path / "link"
    write(file, "old")
    link.symlink_to(file)
    write(link, "new")
    assert link.is_symlink()
    assert file.read_text() == "new"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs a named pipe")
def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    thread = threading.Thread(target=write, args=(pipe, "text"))
    thread.start()
    assert pipe.read_text() == "text"
    thread.join()
    assert pipe.is_fifo()


def test_on_windows_a_file_that_is_read_is_replaced_a_moment_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "file", "old")
    replace, n_readers = Path.replace, 2

    def refusing(path: Path, target: Path) -> Path:
        nonlocal n_readers
        n_readers -= 1
        if n_readers >= 0:
            raise PermissionError(13, "Access is denied")
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", refusing)
    with pytest.raises(PermissionError):
        write(tmp_path / "file", "new")
    monkeypatch.setattr(sys, "platform", "win32")
    write(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "new"


def test_what_is_set_aside_is_still_there(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    for content in ("first", "second"):
        path.write_text(content)
        assert set_aside(path) == f"kept as {tmp_path / 'file.json.damaged'}"
        assert not path.exists()
        assert (tmp_path / "file.json.damaged").read_text() == content
    assert set_aside(path) == "left where it is"


@pytest.mark.parametrize(("text", "why"), [("", "Expecting"), ("{", "Expecting"), ("[" * 100_000, "nested")])
def test_what_is_not_json_is_one_kind_of_error(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_json(text)


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home(_: str) -> str:
        raise RuntimeError  # as newer releases of platformdirs do

    monkeypatch.delenv("SPECRUN_DATA_DIR", raising=False)
    monkeypatch.setattr(platformdirs, "user_data_dir", no_home)
    with pytest.raises(SpecrunError, match="set HOME, or SPECRUN_DATA_DIR"):
        data_dir()


@pytest.mark.parametrize("text", ["", "é 👩 \0 \u202e", "Gr\udcc3\udcbc\udcc3\udc9fe é"])
def test_what_is_typed_in_utf8_is_read_whatever_the_locale(text: str) -> None:
    assert typed(text, "it", PromptError) == text.replace("\udcc3\udcbc", "ü").replace("\udcc3\udc9f", "ß")


@pytest.mark.parametrize("read", [typed, encode])
def test_a_lone_surrogate_is_no_text(read: Callable[..., object]) -> None:
    for text in ("a\udcff", "a\ud83d", "\udcc3\udcbc\ud83d\ude00"):
        with pytest.raises(PromptError, match=r"it is not UTF-8 \(\\ud.* is a lone surrogate\); convert it first"):
            read(text, "it", PromptError)


def test_json_that_is_given_has_finite_numbers() -> None:
    assert given_json('[1e308, -0.0, 1e-999, "NaN"]', "it", PromptError) == [1e308, 0, 0, "NaN"]
    for number in ("NaN", "Infinity", "-Infinity", "1e309", "-1e999"):
        with pytest.raises(PromptError, match=f"it has {number}, which is not a number"):
            given_json(f'{{"a": [{number}]}}', "it", PromptError)
    for text, why in (("{", "at column 2"), ("{\n", "at line 2, column 1"), ("", "is not JSON")):
        with pytest.raises(PromptError, match=why):
            given_json(text, "it", PromptError)


def test_json_has_escapes_only_where_there_must_be_some() -> None:
    assert json_text("é👩") == '"é👩"'
    assert json_text("é", "ascii") == '"\\u00e9"'
    assert json_text("\ud83d") == '"\\ud83d"'
