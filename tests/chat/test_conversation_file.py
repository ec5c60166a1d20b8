"""Saved conversations come back whole, and a failed save harms nothing; of the kept ones none is lost to another."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path

import pytest

from specrun.chat import conversation_file
from specrun.chat.conversation_file import MOST_KEPT, Keeper, LastConversation, save
from specrun.errors import SpecrunError, UsageError
from specrun.llama.chat_template import Message


def conversation(*texts: str) -> LastConversation:
    roles = ("user", "assistant")
    return LastConversation("m", [Message(role=roles[i % 2], content=text) for i, text in enumerate(texts)])


def contents() -> list[list[str]]:
    """What is kept, the conversation that was written last first."""
    return [
        [message["content"] for message in conversation_file.read(path).messages] for path in conversation_file.kept()
    ]


def test_without_any_there_is_none_to_continue() -> None:
    assert conversation_file.kept() == []
    with pytest.raises(UsageError, match="no conversation to continue yet"):
        conversation_file.last()


def test_two_chats_at_once_keep_both_conversations() -> None:
    one, other = Keeper(), Keeper()
    one.keep(conversation("a", "b"))
    other.keep(conversation("x", "y"))
    one.keep(conversation("a", "b", "c", "d"))
    assert sorted(contents()) == [["a", "b", "c", "d"], ["x", "y"]]
    assert conversation_file.last().messages[0]["content"] == "a"


def test_a_conversation_that_goes_on_stays_one_file() -> None:
    Keeper().keep(conversation("a", "b"))
    last = conversation_file.last()
    again = Keeper(last)
    assert contents() == [["a", "b"]]
    again.keep(conversation("a", "b", "c", "d"))
    assert contents() == [["a", "b", "c", "d"]]


def test_a_conversation_that_went_on_elsewhere_is_not_removed() -> None:
    first = Keeper()
    first.keep(conversation("a", "b"))
    again = Keeper(conversation_file.last())  # while the first chat is still open
    first.keep(conversation("a", "b", "c", "d"))
    again.keep(conversation("a", "b", "x", "y"))
    assert sorted(contents()) == [["a", "b", "c", "d"], ["a", "b", "x", "y"]]


def test_turns_that_were_dropped_stay_in_the_file_before() -> None:
    Keeper().keep(conversation("a", "b", "c", "d"))
    keeper = Keeper(conversation_file.last())
    keeper.keep(conversation("c", "d", "e", "f"))
    assert sorted(contents()) == [["a", "b", "c", "d"], ["c", "d", "e", "f"]]
    keeper.keep(conversation("c", "d"), takes_back=True)
    assert sorted(contents()) == [["a", "b", "c", "d"], ["c", "d"]]
    keeper.keep(conversation(), takes_back=True)
    assert contents() == []


@pytest.mark.parametrize("is_continued", [False, True])
@pytest.mark.parametrize("left", [(), ("a", "b")], ids=str)
def test_what_is_taken_back_is_in_no_file(left: tuple[str, ...], is_continued: bool) -> None:
    keeper = Keeper()
    keeper.keep(conversation("a", "b", "c", "d"))
    if is_continued:
        keeper = Keeper(conversation_file.last())
    keeper.keep(conversation(*left), takes_back=True)
    assert contents() == ([list(left)] if left else [])
    keeper.keep(conversation(*left, "x", "y"))
    assert contents() == [[*left, "x", "y"]]


def test_what_another_chat_wrote_is_not_taken_back() -> None:
    first = Keeper()
    first.keep(conversation("a", "b"))
    again = Keeper(conversation_file.last())
    first.keep(conversation("a", "b", "c", "d"))
    again.keep(conversation(), takes_back=True)
    assert contents() == [["a", "b", "c", "d"]]


def test_a_pair_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("target.gguf", "draft.gguf"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    for draft, kept in (("draft.gguf", str(tmp_path / "draft.gguf")), ("none", "none"), (None, None)):
        save(tmp_path / "chat.json", LastConversation("target.gguf", MESSAGES, draft))
        saved = conversation_file.read(tmp_path / "chat.json")
        assert (saved.target, saved.draft) == (str(tmp_path / "target.gguf"), kept)


def test_the_oldest_are_removed_when_there_are_many() -> None:
    for i in range(MOST_KEPT + 3):
        Keeper().keep(conversation(str(i)))
        for age, path in enumerate(conversation_file.kept()):  # clocks of file systems are coarse
            os.utime(path, ns=(0, (1000 - age) * 10**9))
    assert contents() == [[str(i)] for i in range(MOST_KEPT + 2, 2, -1)]


def test_a_damaged_one_is_told() -> None:
    Keeper().keep(conversation("a"))
    path = conversation_file.kept()[0]
    for data in (b"", b"{", b"[" * 100_000, path.read_bytes()[:-3]):
        path.write_bytes(data)
        with pytest.raises(SpecrunError, match=r"is damaged, and kept as .*\.damaged"):
            conversation_file.last()
        assert not path.exists()


@pytest.fixture
def open_umask() -> object:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
def test_only_the_user_can_read_them() -> None:
    Keeper().keep(conversation("a"))
    folder = conversation_file.folder()
    assert mode(folder) == 0o700
    assert mode(folder.parent) == 0o700
    assert [mode(path) for path in folder.iterdir()] == [0o600]


@pytest.mark.usefixtures("open_umask")
def test_what_was_open_to_others_is_closed() -> None:
    folder = conversation_file.folder()
    folder.mkdir(parents=True)
    for name in ("typed.jsonl", "conversation-1.json"):
        (folder / name).write_text('""\n')
        (folder / name).chmod(0o666)
    Keeper().keep(conversation("a"))
    assert mode(folder) == 0o700
    assert {mode(path) for path in folder.iterdir()} == {0o600}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


MESSAGES: list[Message] = [
    {"role": "system", "content": "short"},
    {"role": "user", "content": "é\n🙂"},
    {"role": "assistant", "content": ""},
]


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    save(file, LastConversation(None, MESSAGES))
    assert conversation_file.read(file).messages == MESSAGES
    save(file, LastConversation(None, MESSAGES[:1]))
    assert conversation_file.read(file).messages == MESSAGES[:1]
    assert [path.name for path in tmp_path.iterdir()] == ["chat.json"]


def test_a_model_whose_file_is_not_named_in_utf8_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    save(file, LastConversation(os.fsdecode(b"m\xff.gguf"), conversation("é").messages))
    assert conversation_file.read(file).target == os.fsdecode(b"m\xff.gguf")


def test_a_save_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "chat.json"
    save(file, LastConversation(None, MESSAGES))

    def full(_file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(SpecrunError, match="No space left on device"):
        save(file, LastConversation(None, MESSAGES[:1]))
    assert conversation_file.read(file).messages == MESSAGES
    assert [path.name for path in tmp_path.iterdir()] == ["chat.json"]


def test_every_truncation_is_told(tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    save(file, LastConversation(None, MESSAGES))
    whole = file.read_bytes()
    for n in range(len(whole) - 1):  # the last byte is the end of the line
        file.write_bytes(whole[:n])
        with pytest.raises(SpecrunError, match="is not a saved conversation"):
            conversation_file.read(file)


@pytest.mark.parametrize("umask", [0, 0o022, 0o777])
def test_only_the_user_can_read_what_is_saved(tmp_path: Path, umask: int) -> None:
    file = tmp_path / "chat.json"
    file.write_text("")
    file.chmod(0o644)
    before = os.umask(umask)
    try:
        save(file, LastConversation(None, MESSAGES))
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert conversation_file.read(file).messages == MESSAGES


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    left, written_now, other = (
        tmp_path / f".{name}"
        for name in ("chat.json.4194304-00000000", f"chat.json.{os.getpid()}-00000000", "chat.json.4194304")
    )
    for path in (left, written_now, other):
        path.write_text("")
        os.utime(path, (0, 0))
    save(tmp_path / "chat.json", LastConversation(None, MESSAGES))
    assert {path.name for path in tmp_path.iterdir()} == {"chat.json", written_now.name, other.name}


@pytest.mark.parametrize("where", ["missing/chat.json", "."])
def test_a_place_that_cannot_be_written_is_told(tmp_path: Path, where: str) -> None:
    with pytest.raises(SpecrunError, match="cannot be written"):
        save(tmp_path / where, LastConversation(None, MESSAGES))


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
        conversation_file.read(file)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(SpecrunError, match="cannot be read"):
        conversation_file.read(tmp_path / "missing.json")


def test_a_saved_file_is_readable_json(tmp_path: Path) -> None:
    save(tmp_path / "chat.json", LastConversation(None, MESSAGES))
    text = (tmp_path / "chat.json").read_text(encoding="utf-8")
    assert json.loads(text) == {"target": None, "messages": MESSAGES}
    assert "🙂" in text
