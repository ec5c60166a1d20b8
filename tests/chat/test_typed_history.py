"""What was typed is kept message by message: whole or not at all, in one private file for all chats."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from specrun.chat import reader
from specrun.chat.reader import TypedHistory

MESSAGES = ["one", "two\nlines", "é 🙂", "a \udcff", "+ # \\n"]


def read(path: Path) -> list[str]:
    return list(TypedHistory(path).load_history_strings())[::-1]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chats" / "typed.jsonl"


def filled(path: Path) -> TypedHistory:
    history = TypedHistory(path)
    for message in MESSAGES:
        history.store_string(message)
    return history


def test_messages_are_there_in_the_next_chat(path: Path) -> None:
    filled(path)
    assert read(path) == MESSAGES
    TypedHistory(path).store_string("more")
    assert read(path) == [*MESSAGES, "more"]


def test_chats_at_the_same_time_keep_each_others_messages(path: Path) -> None:
    one, other = TypedHistory(path), TypedHistory(path)
    one.store_string("a")
    other.store_string("x")
    one.store_string("b")
    assert read(path) == ["a", "x", "b"]


def test_every_truncation_leaves_whole_messages_and_the_next_one_is_kept(path: Path) -> None:
    filled(path)
    whole = path.read_bytes()
    for n in range(len(whole)):
        path.write_bytes(whole[:n])
        before = read(path)
        # A message whose line lacks only its end is whole.
        assert before == MESSAGES[: len(before)]
        assert len(before) >= whole[:n].count(b"\n")
        TypedHistory(path).store_string("more")
        assert read(path) == [*before, "more"]


@pytest.mark.parametrize("damage", [b"\xff\xfe\n", b"{}\n", b"3\n", b"[" * 100_000 + b"\n", b"\0" * 5 + b"\n"])
def test_lines_that_are_no_messages_are_left_out(path: Path, damage: bytes) -> None:
    filled(path)
    path.write_bytes(damage + path.read_bytes() + damage)
    assert read(path) == MESSAGES


def test_the_oldest_go_first(path: Path) -> None:
    filled(path)
    assert list(TypedHistory(path, most_kept=2).load_history_strings()) == MESSAGES[:-3:-1]
    assert read(path) == MESSAGES[-2:]


def test_a_full_disk_leaves_what_is_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = filled(path)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(reader, "_line", full)
        history.store_string("lost")
    assert history.failure
    assert history.failure.strerror == "No space left on device"
    assert read(path) == MESSAGES


def test_only_the_user_can_read_it(path: Path) -> None:
    before = os.umask(0)
    try:
        path.parent.mkdir()
        path.write_text('"one"\n')
        path.chmod(0o644)
        TypedHistory(path).store_string("two")
    finally:
        os.umask(before)
    assert read(path) == ["one", "two"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
