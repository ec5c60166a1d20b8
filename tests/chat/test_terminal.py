"""A chat on a real (pseudo) terminal: keys, history, completion, and what Ctrl-C and Ctrl-D do."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.conftest import SCRIPT_TEXT, Specrun
from tests.waiting import TIMEOUT_S

if TYPE_CHECKING:
    import pexpect

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo terminal")

HINT = "a message, or /help"
ALT_ENTER, UP, CTRL_C, CTRL_D, CTRL_R = "\x1b\r", "\x1b[A", "\x03", "\x04", "\x12"
CTRL_A = "\x01"  # to the beginning of the line


@pytest.fixture
def chat(specrun: Specrun, script: Path) -> pexpect.spawn[str]:
    terminal = specrun.on_terminal("chat", "-m", script, "-md", script)
    terminal.expect_exact(HINT)
    return terminal


def leave(terminal: pexpect.spawn[str]) -> None:
    import pexpect

    terminal.send(CTRL_D)
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0


def kept_messages(folder: Path) -> list[dict[str, str]]:
    """The messages of the only conversation that was kept."""
    (file,) = (folder / "data" / "chats").glob("conversation-*.json")
    messages: list[dict[str, str]] = json.loads(file.read_text())["messages"]
    return messages


def test_three_turns_with_a_dim_line_of_statistics(chat: pexpect.spawn[str]) -> None:
    for message in ("one", "two", "three"):
        chat.send(f"{message}\r")
        chat.expect_exact(SCRIPT_TEXT)
        chat.expect(r"\x1b\[2m5 tokens, \d+\.\d tokens/s")
        chat.expect_exact(HINT)
    leave(chat)


def test_alt_enter_and_triple_quotes_make_messages_of_several_lines(
    specrun: Specrun, script: Path, tmp_path: Path
) -> None:
    file = tmp_path / "chat.json"
    chat = specrun.on_terminal("chat", "-m", script)
    chat.expect_exact(HINT)
    for keys in (f"one{ALT_ENTER}two\r", '"""\rthree\rfour"""\r'):
        chat.send(keys)
        chat.expect_exact("5 tokens")
        chat.expect_exact(HINT)
    chat.send(f"/save {file}\r")
    chat.expect_exact("saved to")
    leave(chat)
    text = file.read_text()
    assert '"one\\ntwo"' in text
    assert '"three\\nfour"' in text


def test_a_paste_is_one_message(specrun: Specrun, script: Path, tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    chat = specrun.on_terminal("chat", "-m", script)
    chat.expect_exact(HINT)
    pasted = "\r".join(f"/line {i}" for i in range(30))
    chat.send(f"\x1b[200~{pasted}\x1b[201~\r")
    chat.expect_exact("5 tokens")
    chat.expect_exact(HINT)
    chat.send(f"/save {file}\r")
    chat.expect_exact("saved to")
    leave(chat)
    assert json.loads(file.read_text())["messages"][0]["content"] == "\n".join(f"/line {i}" for i in range(30))


def test_ctrl_r_finds_what_was_typed_before(chat: pexpect.spawn[str]) -> None:
    for message in ("something to remember", "something else"):
        chat.send(f"{message}\r")
        chat.expect_exact("5 tokens")
        chat.expect_exact(HINT)
    chat.send(f"{CTRL_R}to rem")
    chat.expect(r"something .*to rem.*ember.*I-search")
    chat.send("\r\r")  # takes what was found, and sends it
    chat.expect_exact("5 tokens")
    chat.expect_exact(HINT)
    leave(chat)


def test_a_conversation_goes_on_with_its_model(specrun: Specrun, script: Path, tmp_path: Path) -> None:
    chat = specrun.on_terminal("chat", "-m", script)
    chat.expect_exact(HINT)
    chat.send("one of a kind\r")
    chat.expect_exact("5 tokens")
    leave(chat)
    again = specrun.on_terminal("chat", "--continue")
    again.expect_exact("continuing a conversation of 2 messages; the last was: one of a kind")
    again.expect_exact(HINT)
    again.send("two\r")
    again.expect_exact("5 tokens")
    again.expect_exact(HINT)
    leave(again)
    (file,) = (tmp_path / "data" / "chats").glob("conversation-*.json")
    kept = json.loads(file.read_text())
    assert kept["target"] == str(script)
    assert [message["content"] for message in kept["messages"]] == ["one of a kind", SCRIPT_TEXT, "two", SCRIPT_TEXT]


def test_a_loaded_conversation_is_the_one_to_continue(specrun: Specrun, script: Path, tmp_path: Path) -> None:
    file = tmp_path / "one.json"
    chat = specrun.on_terminal("chat", "-m", script, "-md", script)
    chat.expect_exact(HINT)
    for typed, said in (
        ("aaa", "5 tokens"),
        (f"/save {file}", "saved to"),
        ("bbb", "5 tokens"),
        (f"/load {file}", "loaded 2 messages"),
    ):
        chat.send(f"{typed}\r")
        chat.expect_exact(said)
        chat.expect_exact(HINT)
    leave(chat)
    again = specrun.on_terminal("chat", "--continue", "--speculate", "tree")
    again.expect_exact("drafts by")  # not from the text itself
    again.expect_exact("continuing a conversation of 2 messages; the last was: aaa")
    again.expect_exact(HINT)
    again.send("/load\r")
    again.expect_exact("bbb")  # another conversation, which stays
    again.expect_exact(HINT)
    leave(again)
    assert len(list((tmp_path / "data" / "chats").glob("conversation-*.json"))) == 2
    assert len(json.loads(file.read_text())["messages"]) == 2


def test_what_was_taken_back_does_not_come_back(specrun: Specrun, script: Path, tmp_path: Path) -> None:
    def kept() -> list[list[str]]:
        files = (tmp_path / "data" / "chats").glob("conversation-*.json")
        return [[one["content"] for one in json.loads(file.read_text())["messages"]] for file in files]

    chat = specrun.on_terminal("chat", "-m", script)
    chat.expect_exact(HINT)
    for typed, said, left in (
        ("one", "5 tokens", [["one", SCRIPT_TEXT]]),
        ("two", "5 tokens", [["one", SCRIPT_TEXT, "two", SCRIPT_TEXT]]),
        ("/undo", "forgotten", [["one", SCRIPT_TEXT]]),
        ("/system be brief", "set", [["be brief", "one", SCRIPT_TEXT]]),
        ("/clear", "conversation forgotten", []),
        ("three", "5 tokens", [["be brief", "three", SCRIPT_TEXT]]),
    ):
        chat.send(f"{typed}\r")
        chat.expect_exact(said)
        chat.expect_exact(HINT)
        assert kept() == left, typed
    leave(chat)
    again = specrun.on_terminal("chat", "--continue")
    again.expect_exact(HINT)
    again.send("/undo\r")
    again.expect_exact("forgotten")
    again.expect_exact(HINT)
    leave(again)
    assert kept() == []


def test_two_chats_at_once_keep_both_conversations(specrun: Specrun, script: Path, tmp_path: Path) -> None:
    chats = [specrun.on_terminal("chat", "-m", script) for _ in range(2)]
    for i, one in enumerate(chats):
        one.expect_exact(HINT)
        one.send(f"message {i}\r")
        one.expect_exact("5 tokens")
        one.expect_exact(HINT)
    for one in chats:
        leave(one)
    again = specrun.on_terminal("chat", "--continue")
    again.expect_exact("the last was: message 1")
    again.expect_exact(HINT)
    again.send("/load\r")
    again.expect_exact("message 1")
    again.expect_exact("message 0")
    again.expect_exact(HINT)
    again.send("/load 2\r")
    again.expect_exact("loaded 2 messages")
    again.expect_exact(HINT)
    leave(again)
    folder = tmp_path / "data" / "chats"
    typed = [json.loads(line) for line in (folder / "typed.jsonl").read_text().splitlines()]
    assert typed == ["message 0", "message 1", "/load", "/load 2"]
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


def test_plain_answers_have_nothing_that_moves(specrun: Specrun, script: Path) -> None:
    chat = specrun.on_terminal("chat", "-m", script, "--plain")
    chat.expect_exact(HINT)
    chat.send("one\r")
    chat.expect_exact(f"{SCRIPT_TEXT}\r\n\r\n")
    chat.expect_exact("5 tokens")
    assert "Ctrl-C stops" not in (chat.before or "")
    leave(chat)


def test_the_embedded_pair_can_be_named_and_chosen(specrun: Specrun) -> None:
    chat = specrun.on_terminal("chat", "-n", "2")
    chat.expect(r"(\d) +embedded ")
    chat.send(f"{chat.match[1]}\r")
    chat.expect_exact(HINT)
    leave(chat)
    named = specrun("chat", "--target", "embedded", "-n", "2", stdin="hello\n")
    assert (named.code, bool(named.stdout)) == (0, True), named.stderr


@pytest.mark.parametrize("command", ["chat", "serve"])
def test_nobody_is_asked_for_a_model_where_nobody_can_answer(specrun: Specrun, command: str) -> None:
    specrun(command, stdin="hello\n").assert_fails(2, "--target", "specrun models list", "--target embedded")


def test_history_is_there_in_the_next_run(chat: pexpect.spawn[str], specrun: Specrun, script: Path) -> None:
    chat.send("something to remember\r")
    chat.expect_exact("5 tokens")
    leave(chat)
    again = specrun.on_terminal("chat", "-m", script)
    again.expect_exact(HINT)
    again.send(UP)
    again.expect_exact("something to remember")
    again.send(CTRL_C)
    leave(again)


def test_commands_are_completed_with_their_help(chat: pexpect.spawn[str]) -> None:
    chat.send("/st")
    chat.expect_exact("statistics of the last answer")
    chat.send("\t\r")
    chat.expect_exact("no answer yet")
    chat.send("/set rep")
    chat.expect_exact("repeat-penalty")
    chat.send(CTRL_C)
    leave(chat)


def test_what_was_refused_does_not_stand_before_the_next_line(specrun: Specrun, script: Path, tmp_path: Path) -> None:
    """It is one key away: a near miss of a command is sent as a message all the same, by a blank put in front."""
    file = tmp_path / "chat.json"
    chat = specrun.on_terminal("chat", "-m", script)
    chat.expect_exact(HINT)
    chat.send("/sav the whales\r")
    chat.expect_exact("did you mean /save?")
    chat.expect_exact(HINT)
    chat.send(f"{UP}{CTRL_A} \r")
    chat.expect_exact("5 tokens")
    chat.expect_exact(HINT)
    chat.send("/save\r")
    chat.expect_exact("no file is given")
    chat.expect_exact(HINT)
    chat.send(f"/save {file}\r")
    chat.expect_exact("saved to")
    chat.expect_exact(HINT)
    leave(chat)
    assert [message["content"] for message in json.loads(file.read_text())["messages"]] == [
        " /sav the whales",
        SCRIPT_TEXT,
    ]


def test_ctrl_c_at_the_prompt_leaves_the_second_time(chat: pexpect.spawn[str]) -> None:
    import pexpect

    chat.send(CTRL_C)
    chat.expect_exact("press Ctrl-C again, or Ctrl-D, to leave")
    chat.expect_exact(HINT)
    chat.send(CTRL_C)
    chat.expect(pexpect.EOF)
    chat.close()
    assert chat.exitstatus == 0


def test_ctrl_c_first_gives_up_what_is_typed(chat: pexpect.spawn[str]) -> None:
    for typed in ("", "half", "", "another", ""):
        chat.send(typed + CTRL_C)
        if not typed:
            chat.expect_exact("press Ctrl-C again, or Ctrl-D, to leave")
        chat.expect_exact(HINT)
    chat.send("one\r")
    chat.expect_exact(SCRIPT_TEXT)
    leave(chat)


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_that_stopped_an_answer_does_not_count_at_the_prompt(
    specrun: Specrun, endless: Path, times: int
) -> None:
    chat = specrun.on_terminal("chat", "-m", endless, "-c", "16000", "--speculate", "off")
    chat.expect_exact(HINT)
    for message in ("sing", "again"):
        chat.send(f"{message}\r")
        chat.expect_exact("la lo la lo")
        chat.send(CTRL_C * times)
        chat.expect_exact(HINT)
    chat.send(CTRL_C)
    chat.expect_exact("press Ctrl-C again, or Ctrl-D, to leave")
    chat.expect_exact(HINT)
    leave(chat)


def test_exit_leaves(chat: pexpect.spawn[str]) -> None:
    import pexpect

    chat.send("/exit\r")
    chat.expect(pexpect.EOF)
    chat.close()
    assert chat.exitstatus == 0


def test_ctrl_c_stops_an_answer_and_keeps_it(specrun: Specrun, endless: Path, tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    chat = specrun.on_terminal("chat", "-m", endless, "-c", "16000")
    chat.expect_exact(HINT)
    chat.send("sing\r")
    chat.expect_exact("la lo la lo")
    chat.send("typed meanwhile" + CTRL_C)
    chat.expect(r"tokens/s, .*interrupted")
    screen = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", chat.before or "")
    assert "^C" not in screen
    assert "typed" not in screen
    chat.expect_exact(HINT)
    chat.send(f"/save {file}\r")
    chat.expect_exact("saved to")
    leave(chat)
    assert '"content": "la lo la lo' in file.read_text()


def test_a_data_folder_that_cannot_be_is_one_line(
    specrun: Specrun, script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPECRUN_DATA_DIR", str(tmp_path / "file"))
    chat = specrun.on_terminal("chat", "-m", script, "--speculate", "off")
    screen = chat.read()
    chat.close()
    assert chat.exitstatus == 1
    assert "SPECRUN_DATA_DIR" in screen
    assert "Traceback" not in screen


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("is_writing", [True, False])
def test_the_end_of_the_process_keeps_the_answer_and_gives_the_terminal_back(
    specrun: Specrun, endless: Path, tmp_path: Path, number: signal.Signals, is_writing: bool
) -> None:
    import termios

    import pexpect

    chat = specrun.on_terminal("chat", "-m", endless, "-c", "16000", "--speculate", "off")
    chat.expect_exact(HINT)
    if is_writing:
        chat.send("sing\r")
        chat.expect_exact("la lo la lo")
    terminal = os.dup(chat.child_fd)
    chat.kill(number)
    chat.expect(pexpect.EOF)
    screen = chat.before or ""
    chat.wait()
    assert chat.exitstatus == 128 + number
    assert "Traceback" not in screen
    assert termios.tcgetattr(terminal)[3] & termios.ECHO
    os.close(terminal)
    assert screen.rfind("\x1b[?25h") >= screen.rfind("\x1b[?25l")  # the cursor is shown again
    if is_writing:
        question, answer = kept_messages(tmp_path)
        assert question["content"] == "sing"
        assert answer["content"].startswith("la lo la lo")


_ENDED_WHILE_IT_READS_THE_HISTORY = """
import os, runpy, signal
from specrun.chat.reader import TypedHistory
read = TypedHistory.load_history_strings
def ended(history):
    os.kill(os.getpid(), signal.SIGTERM)
    return read(history)
TypedHistory.load_history_strings = ended
runpy.run_module("specrun", run_name="__main__")
"""


@pytest.mark.usefixtures("known_facts")
def test_the_end_of_the_process_in_a_task_of_the_prompt_gives_the_terminal_back(script: Path) -> None:
    """The prompt showed such an exception with a traceback, and left the terminal without an echo."""
    import termios

    import pexpect

    arguments = ["-c", _ENDED_WHILE_IT_READS_THE_HISTORY, "chat", "-t", "1", "-m", str(script), "--speculate", "off"]
    chat = pexpect.spawn(sys.executable, arguments, encoding="utf-8", timeout=TIMEOUT_S, dimensions=(40, 90))
    terminal = os.dup(chat.child_fd)
    chat.expect(pexpect.EOF)
    chat.wait()
    assert chat.exitstatus == 128 + signal.SIGTERM
    assert "Traceback" not in (chat.before or "")
    assert termios.tcgetattr(terminal)[3] & termios.ECHO
    os.close(terminal)


def test_a_terminal_that_is_closed_keeps_the_answer(specrun: Specrun, endless: Path, tmp_path: Path) -> None:
    chat = specrun.on_terminal("chat", "-m", endless, "-c", "16000", "--speculate", "off")
    chat.expect_exact(HINT)
    chat.send("sing\r")
    chat.expect_exact("la lo la lo")
    process = psutil.Process(chat.pid)
    chat.ptyproc.fileobj.close()
    chat.closed = chat.ptyproc.closed = True
    assert process.wait(TIMEOUT_S) in (129, -signal.SIGHUP)
    _, answer = kept_messages(tmp_path)
    assert answer["content"].startswith("la lo")
