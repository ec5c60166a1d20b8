"""Saved conversations: the round trip, and that a failed save harms nothing."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path

import pytest

from specrun.chat.transcripts import load_messages, save_messages
from specrun.errors import SpecrunError
from specrun.llama.chat_template import Message

MESSAGES: list[Message] = [
    {"role": "system", "content": "short"},
    {"role": "user", "content": "é\n🙂"},
    {"role": "assistant", "content": ""},
]


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    save_messages(file, MESSAGES, None)
    assert load_messages(file) == MESSAGES
    save_messages(file, MESSAGES[:1], None)
    assert load_messages(file) == MESSAGES[:1]
    assert [path.name for path in tmp_path.iterdir()] == ["chat.json"]


def test_a_save_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "chat.json"
    save_messages(file, MESSAGES, None)

    def full(_file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(SpecrunError, match="No space left on device"):
        save_messages(file, MESSAGES[:1], None)
    assert load_messages(file) == MESSAGES
    assert [path.name for path in tmp_path.iterdir()] == ["chat.json"]


def test_every_truncation_is_told(tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    save_messages(file, MESSAGES, None)
    whole = file.read_bytes()
    for n in range(len(whole) - 1):  # the last byte is the end of the line
        file.write_bytes(whole[:n])
        with pytest.raises(SpecrunError, match="is not a saved conversation"):
            load_messages(file)


@pytest.mark.parametrize("umask", [0, 0o022, 0o777])
def test_only_the_user_can_read_what_is_saved(tmp_path: Path, umask: int) -> None:
    file = tmp_path / "chat.json"
    file.write_text("")
    file.chmod(0o644)
    before = os.umask(umask)
    try:
        save_messages(file, MESSAGES, None)
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert load_messages(file) == MESSAGES


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    left, written_now, other = (
        tmp_path / f".{name}"
        for name in ("chat.json.4194304-00000000", f"chat.json.{os.getpid()}-00000000", "chat.json.4194304")
    )
    for path in (left, written_now, other):
        path.write_text("")
        os.utime(path, (0, 0))
    save_messages(tmp_path / "chat.json", MESSAGES, None)
    assert {path.name for path in tmp_path.iterdir()} == {"chat.json", written_now.name, other.name}


@pytest.mark.parametrize("where", ["missing/chat.json", "."])
def test_a_place_that_cannot_be_written_is_told(tmp_path: Path, where: str) -> None:
    with pytest.raises(SpecrunError, match="cannot be written"):
        save_messages(tmp_path / where, MESSAGES, None)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"text",
        b"\xff",
        b"[" * 100_000,
        b"[]",
        b"{}",
        b'{"messages": 3}',
        b'{"messages": ["a"]}',
        b'{"messages": [{"role": "user"}]}',
        b'{"messages": [{"role": "tool", "content": "x"}]}',
        b'{"messages": [{"role": "user", "content": 3}]}',
    ],
)
def test_a_file_that_is_no_conversation_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "chat.json"
    file.write_bytes(content)
    with pytest.raises(SpecrunError, match=r"chat.json is not a saved conversation"):
        load_messages(file)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(SpecrunError, match="cannot be read"):
        load_messages(tmp_path / "missing.json")


def test_a_saved_file_is_readable_json(tmp_path: Path) -> None:
    save_messages(tmp_path / "chat.json", MESSAGES, None)
    text = (tmp_path / "chat.json").read_text(encoding="utf-8")
    assert json.loads(text) == {"target": None, "messages": MESSAGES}
    assert "🙂" in text
