"""Files that are written whole or not at all, and damaged ones that are set aside."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from specrun.locations import parse_json, set_aside, whole_file


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
