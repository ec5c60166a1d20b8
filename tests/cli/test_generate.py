"""`specrun generate`: where the prompt comes from, the forms of output, and how it is stopped."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from specrun.cli.answers import PromptLine
from specrun.cli.generate import STDIN, read_lines, read_text
from specrun.decoding import prompt_states
from specrun.errors import ModelFileError, PromptError
from tests.conftest import SCRIPT_TEXT, Specrun, SpecrunHere
from tests.models import edited, scripted_llama
from tests.waiting import TIMEOUT_S, wait_until

BROKEN_PIPE, INTERRUPTED, PROMPT_ERROR = 141, 130, 5

RAW_JSON = ["--raw", "--json", "--speculate", "off", "-n", "1"]


def n_prompt_tokens(here: SpecrunHere, model: Path, *arguments: str | Path, stdin: str = "") -> int:
    result = here("generate", "-m", model, *RAW_JSON, *arguments, stdin=stdin)
    assert result.code == 0, result
    return int(json.loads(result.stdout)["prompt_tokens"])


# --- the prompt ----------------------------------------------------------------------------------------------------


def test_the_result_alone_goes_to_stdout(specrun: Specrun, script: Path) -> None:
    result = specrun("generate", "x", "-m", script)
    assert (result.code, result.stdout) == (0, f"{SCRIPT_TEXT}\n")
    notice = (
        f"no draft for {script}, so it drafts from the text itself; `specrun models make-draft {script}` makes one\n"
    )
    assert result.stderr == notice


def test_the_prompt_is_argument_then_files_then_stdin(here: SpecrunHere, script: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("b\n")
    together = n_prompt_tokens(here, script, "a", "-f", file, stdin="c\n")
    assert together == n_prompt_tokens(here, script, "a\nb\nc")
    assert together > n_prompt_tokens(here, script, "a\nb")


@pytest.mark.parametrize("arguments", [["-"], ["-f", "-"], []])
def test_stdin_alone_can_be_the_prompt(here: SpecrunHere, script: Path, arguments: list[str]) -> None:
    result = here("generate", *arguments, "-m", script, stdin="x")
    assert (result.code, result.stdout) == (0, f"{SCRIPT_TEXT}\n")


@pytest.mark.parametrize("prompt", ["", " \n\t\n"])
def test_an_empty_prompt_is_refused(here: SpecrunHere, script: Path, prompt: str) -> None:
    here("generate", prompt, "-m", script).assert_fails(PROMPT_ERROR, "the prompt is empty")


def test_a_prompt_that_is_not_utf8_is_refused_before_the_model_is_loaded(here: SpecrunHere, tmp_path: Path) -> None:
    model = tmp_path / "no.gguf"
    here("generate", "-m", model, stdin=b"ab\xff").assert_fails(PROMPT_ERROR, "stdin is not UTF-8", "offset 2")
    file = tmp_path / "prompt.txt"
    file.write_bytes(b"\xc3\x28")
    here("generate", "-m", model, "-f", file).assert_fails(PROMPT_ERROR, "prompt.txt is not UTF-8", "0xc3")
    here("generate", "-m", model, "-f", tmp_path / "missing").assert_fails(PROMPT_ERROR, "cannot be read")


def test_an_argument_that_is_not_utf8_is_refused(specrun: Specrun, script: Path) -> None:
    result = specrun("generate", os.fsdecode(b"a\xff"), "-m", script, "--speculate", "off")
    result.assert_fails(PROMPT_ERROR, "not UTF-8")


@pytest.mark.slow
@pytest.mark.parametrize("template", [(), ("--chat-template", "chatml"), ("--raw",)])
def test_a_text_that_is_not_utf8_is_refused_with_and_without_a_template(
    here: SpecrunHere, script: Path, template: tuple[str, ...]
) -> None:
    for text in (os.fsdecode(b"a\xff"), "a \ud83d b"):
        here("generate", text, "-m", script, *template).assert_fails(PROMPT_ERROR, "not UTF-8", "at character")
        line = json.dumps({"prompt": text, "id": 7})
        result = here("generate", "--jsonl", "-m", script, *template, stdin=f'{line}\n{{"prompt": "a"}}')
        bad, good = map(json.loads, result.stdout.splitlines())
        assert (bad["id"], good["text"], result.code) == (7, SCRIPT_TEXT, PROMPT_ERROR)
    for option in ("--system", "--stop"):
        result = here("generate", "x", option, os.fsdecode(b"a\xff"), "-m", script, "--chat-template", "chatml")
        result.assert_fails(2, f"{option} is not UTF-8")


def test_an_argument_in_utf8_is_read_in_any_locale(specrun: Specrun, script: Path, tmp_path: Path) -> None:
    ascii_only = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    model = tmp_path / "modèle.gguf"
    model.write_bytes(script.read_bytes())
    arguments = ("Grüße 👩", "-m", model, "--chat-template", "chatml", "--system", "Kürze", "--stop", " é", "--json")
    in_ascii, usual = (specrun("generate", *arguments, **more) for more in (ascii_only, {}))
    answers = [json.loads(result.stdout) for result in (in_ascii, usual)]
    assert answers[0]["prompt_tokens"] == answers[1]["prompt_tokens"]
    assert answers[0]["text"] == "one two"
    chat = specrun("chat", model, "Grüße", "--max-tokens", "2", **ascii_only)
    assert (chat.code, chat.stdout) == (0, "one two\n\n"), chat
    refused = specrun("generate", os.fsdecode(b"a\xff"), "-m", model, **ascii_only)
    refused.assert_fails(PROMPT_ERROR, "not UTF-8")


def test_a_closed_stdin_is_no_prompt(specrun: Specrun, script: Path) -> None:
    command = ["sh", "-c", 'exec "$@" <&-', "sh", *specrun.command("generate", "-", "-m", script)]
    run = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False)
    assert (run.returncode, run.stderr.count(b"\n")) == (PROMPT_ERROR, 1)
    assert b"stdin is closed" in run.stderr


def test_a_closed_stdout_is_no_error(specrun: Specrun, script: Path) -> None:
    command = specrun.command("generate", "x", "-m", script, "--speculate", "off")
    run = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *command],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, b"")


def test_a_prompt_fits_while_one_token_can_be_written(here: SpecrunHere, script: Path, tmp_path: Path) -> None:
    arguments = ["generate", "a b c d e f", "-m", script, "--raw", "--speculate", "off"]
    n_prompt = n_prompt_tokens(here, script, "a b c d e f")
    fits = here(*arguments, "-c", str(n_prompt + 1), "--json")
    assert json.loads(fits.stdout)["completion_tokens"] == 1
    assert json.loads(fits.stdout)["finish_reason"] == "context"
    why = f"the context of {n_prompt + 1} tokens is full; give a larger --ctx-size"
    assert fits.stderr.endswith(f"the text is cut off: {why}\n")
    assert "the context" not in here(*arguments, "-c", str(n_prompt + 1), "-n", "1").stderr, "-n ended it"
    lines = "".join(f"{json.dumps({'prompt': prompt})}\n" for prompt in ("a b c d e f", "a"))
    many = here("generate", "--jsonl", *arguments[2:], "-c", str(n_prompt + 1), "-np", "1", stdin=lines)
    assert many.stderr.endswith(f"1 of 2 texts cut off: {why}\n")
    kept = "-o", tmp_path / "answers.jsonl"
    many = here("generate", "--jsonl", *kept, *arguments[2:], "-c", str(n_prompt + 1), "-np", "1", stdin=lines)
    assert many.stderr.endswith(f"1 of 2 texts cut off: {why} and another --output\n")
    result = here(*arguments, "-c", str(n_prompt))
    result.assert_fails(PROMPT_ERROR, f"{n_prompt} tokens", f"context {n_prompt}", "--ctx-size")


def test_a_context_beyond_the_models_own_is_noted(here: SpecrunHere, script: Path) -> None:
    result = here("generate", "x", "-m", script, "--speculate", "off", "-c", "513")
    assert result.code == 0
    assert "trained for 512 tokens" in result.stderr


# --- forms of output -----------------------------------------------------------------------------------------------


def test_json_is_one_object(here: SpecrunHere, script: Path) -> None:
    result = here("generate", "x", "-m", script, "-md", script, "--json", "--speculate", "tree")
    assert result.stdout.count("\n") == 1
    answer = json.loads(result.stdout)
    assert (answer["text"], answer["finish_reason"]) == (SCRIPT_TEXT, "stop")
    assert answer["completion_tokens"] == len(answer["token_ids"]) == 5
    assert answer["passes"] < 5


def test_jsonl_keeps_ids_and_goes_on_after_bad_lines(here: SpecrunHere, script: Path) -> None:
    lines = [
        b'{"prompt": "a", "id": "first"}',
        b"",
        b"not json",
        b'{"prompt": "b"}',
        b'{"id": [1, 2]}',
        b'{"prompt": " ", "id": null}',
        b'{"prompt": "\\ud800", "id": 7}',
        b'{"prompt": "\xff"}',
        b'{"prompt": "' + b"word " * 600 + b'", "id": "long"}',
        b"[" * 100_000,
        b'{"prompt": "c", "id": {"deep": true}}',
        b'{"prompt": "d", "id": ["\\ud83d"]}',
        b'{"prompt": "a\\ud83d", "id": {"\\udcff": 0.1}}',
        b'{"prompt": "e", "id": NaN}',
    ]
    result = here("generate", "--jsonl", "-m", script, stdin=b"\n".join(lines))
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert result.code == PROMPT_ERROR
    good = [answer for answer in answers if "text" in answer]
    assert [(answer["id"], answer["text"]) for answer in good] == [
        ("first", SCRIPT_TEXT),
        (4, SCRIPT_TEXT),
        ({"deep": True}, SCRIPT_TEXT),
        (["\ud83d"], SCRIPT_TEXT),
    ]
    bad = {json.dumps(answer.get("line", answer["id"])): answer["error"] for answer in answers if "error" in answer}
    assert list(bad) == ["3", "[1, 2]", "null", "7", "8", '"long"', "10", '{"\\udcff": 0.1}', "14"]
    assert [answer["id"] for answer in answers if "line" in answer] == [3, 4, 8, 10, 14]
    assert all(answer["id"] == answer.get("line", answer["id"]) for answer in answers)
    assert "line 3 is not JSON" in bad["3"]
    assert 'no "prompt"' in bad["[1, 2]"]
    assert result.stderr.endswith("9 of 13 lines failed (lines 3, 5, 6, 7, 8 and 4 more); `error` says why\n")
    assert "--ctx-size" in bad['"long"']


def test_an_option_in_a_line_is_not_left_out_in_silence(here: SpecrunHere, script: Path) -> None:
    """Other data of the user's is."""
    fields = [{"max_tokens": 3}, {"temp": "x"}, {"num_predict": 3}, {"system": "be brief"}]
    data = [{"target": "a", "kind": "prose", "seed": None, "text": ""}]
    lines = "\n".join(json.dumps({"prompt": "a", **more}) for more in [*fields, *data])
    result = here("generate", "--jsonl", "-m", script, stdin=lines)
    *refused, answer = [json.loads(line) for line in result.stdout.splitlines()]
    assert answer["text"] == SCRIPT_TEXT
    for i, option in enumerate(("--max-tokens", "--temp", "--max-tokens", "--system")):
        assert f'line {i + 1} has "{next(iter(fields[i]))}"' in refused[i]["error"]
        assert f"give {option} to the command" in refused[i]["error"]
    assert result.code == PROMPT_ERROR
    assert result.stderr.endswith("4 of 5 lines failed (lines 1, 2, 3, 4); `error` says why\n")


def test_a_line_that_the_chat_template_refuses_is_an_error_of_its_own(
    here: SpecrunHere, script: Path, tmp_path: Path
) -> None:
    template = "{% if 'b' in messages[0].content %}{{ raise_exception('no b') }}{% endif %}{{ messages[0].content }}"
    file = edited(tmp_path / "model.gguf", script, {"tokenizer.chat_template": template})
    lines = [json.dumps({"prompt": prompt}) for prompt in ("a", "b", "c")]
    result = here("generate", "--jsonl", "-m", file, stdin="\n".join(lines))
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert [answer.get("text") for answer in answers] == [SCRIPT_TEXT, None, SCRIPT_TEXT]
    assert "no b" in answers[1]["error"]
    assert result.code == ModelFileError.exit_code


def test_jsonl_writes_each_line_as_soon_as_it_is_ready(specrun: Specrun, script: Path) -> None:
    process = specrun.start("generate", "--jsonl", "-m", script, stdin=subprocess.PIPE)
    assert process.stdin
    assert process.stdout
    for identity in ("one", "two"):
        process.stdin.write(json.dumps({"prompt": "x", "id": identity}).encode() + b"\n")
        process.stdin.flush()
        assert json.loads(readline(process.stdout))["id"] == identity
    process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0


def test_jsonl_from_files_with_an_argument_before_each_prompt(here: SpecrunHere, script: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "b\u2028c"}\r\n{"prompt": "d"}', encoding="utf-8")
    result = here("generate", "a", "--jsonl", "--raw", "-f", file, "-m", script)
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert [answer["id"] for answer in answers] == [1, 2]
    assert answers[1]["prompt_tokens"] == n_prompt_tokens(here, script, "a\nd")


def test_raw_leaves_the_chat_template_out(here: SpecrunHere, script: Path, tmp_path: Path) -> None:
    file = edited(tmp_path / "model.gguf", script, {"tokenizer.chat_template": "a b c {{ messages[0]['content'] }}"})
    assert n_prompt_tokens(here, file, "x") == 1
    result = here("generate", "x", "--json", "-m", file)
    assert json.loads(result.stdout)["prompt_tokens"] > 1


@pytest.mark.slow
def test_statistics_go_to_stderr(here: SpecrunHere, script: Path) -> None:
    result = here("generate", "x", "--stats", "-m", script, "-md", script, "--speculate", "tree")
    assert result.stdout == f"{SCRIPT_TEXT}\n"
    assert [line.split()[0] for line in result.stderr.splitlines()] == [
        "plan",
        "prompt",
        "answer",
        "passes",
        "ms",
        "memory",
        "drafted",
        "accepted",
    ]
    assert "5 tokens" in result.stderr
    assert "ended by stop" in result.stderr
    found = json.loads(here("generate", "x", "--json", "-m", script, "-md", script, "--speculate", "tree").stdout)
    assert 0 < found["acceptance_rate"] == round(5 / found["drafted_tokens"], 4), "all five tokens were drafted"
    assert found["nodes_per_pass"] == round(1 + found["drafted_tokens"] / found["passes"], 3)
    assert found["draft_to_target"] > 0
    assert found["memory"]["ram_bytes"] > 10_000_000
    assert found["memory"]["vram_bytes"] == 0
    assert found["plan"] == "tree of 16 nodes, 8 deep"


@pytest.mark.parametrize(
    ("stop", "text"),
    [("é", "one two "), ("two é e", "one "), ("one", ""), ("never", SCRIPT_TEXT), (r"e\x20t", "on")],
)
def test_a_stop_string_ends_the_text_before_it(here: SpecrunHere, script: Path, stop: str, text: str) -> None:
    result = here("generate", "x", "-m", script, "-md", script, "--stop", "other", "--stop", stop, "--json")
    assert json.loads(result.stdout)["text"] == text


def test_no_colour_and_no_control_characters_in_pipes(here: SpecrunHere, script: Path) -> None:
    result = here("generate", "x", "--stats", "-m", script)
    assert "\x1b" not in result.stdout + result.stderr


@pytest.mark.parametrize("no_color", [False, True])
def test_colour_on_a_terminal_unless_no_color_is_set(
    specrun: Specrun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_color: bool
) -> None:
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    terminal = specrun.on_terminal("generate", "x", "-m", tmp_path / "no.gguf")
    screen = terminal.read()
    assert ("\x1b[1;31m" in screen) is not no_color
    assert "no such file" in " ".join(screen.split())


def test_a_terminal_is_told_what_the_demo_pair_can_do(specrun: Specrun, script: Path) -> None:
    told = "only continues Python code"
    assert told in " ".join(specrun.on_terminal("generate", "Why?", "-n", "1", "--speculate", "off").read().split())
    assert told not in specrun.on_terminal("generate", "Why?", "-m", script).read()


def test_an_encoding_without_the_character_gets_a_question_mark(specrun: Specrun, script: Path) -> None:
    result = specrun("generate", "x", "-m", script, PYTHONIOENCODING="ascii")
    assert (result.code, result.stdout) == (0, "one two ? end\n")


HOSTILE = [b"one\x1b[2J", b" two\r", "\u202eend".encode()]


def test_a_text_cannot_command_the_terminal_it_is_shown_on(specrun: Specrun, tmp_path: Path) -> None:
    model = scripted_llama(tmp_path / "hostile.gguf", HOSTILE)
    shown = specrun.on_terminal("generate", "x", "-m", model).read()
    assert "one\\u001b[2J two\\u000d\\u202eend" in shown
    assert "\x1b[2J" not in shown
    piped = specrun("generate", "x", "-m", model)
    assert piped.stdout.encode() == b"".join(HOSTILE) + b"\n"
    shown = specrun.on_terminal("generate", "x", "-m", model, "--json").read()
    assert "\u202e" not in shown
    assert "\\u202eend" in shown


# --- how it is stopped ---------------------------------------------------------------------------------------------


def test_a_reader_that_leaves_early_ends_it_quietly(specrun: Specrun, endless: Path) -> None:
    with specrun.start("generate", "x", "-m", endless, "-c", "16000", "--speculate", "off") as process:
        assert process.stdout
        assert process.stdout.read(3) == b"la "
        process.stdout.close()
        assert process.wait(TIMEOUT_S) == BROKEN_PIPE
        assert process.stderr
        assert process.stderr.read() == b""


def test_a_full_disk_is_one_line(specrun: Specrun, script: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("there is no /dev/full here")
    with full.open("wb") as file:
        process = specrun.start("generate", "x", "-m", script, "--speculate", "off", stdout=file.fileno())
        _, stderr = process.communicate(timeout=TIMEOUT_S)
    why = b"stdout cannot be written: No space left on device; free some room, or send it elsewhere"
    assert (process.returncode, stderr) == (1, b"specrun: " + why + b"\n")


def test_ctrl_c_keeps_the_text_so_far(specrun: Specrun, endless: Path) -> None:
    process = specrun.start("generate", "x", "-m", endless, "-c", "16000", "--speculate", "off")
    assert process.stdout
    first = process.stdout.read(3)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == INTERRUPTED
    text = (first + stdout).decode()
    assert text.endswith(" \n")
    assert ("la lo " * 16000).startswith(text.removesuffix("\n"))
    assert stderr == b""


def test_ctrl_c_with_json_still_writes_the_object(specrun: Specrun, endless: Path) -> None:
    process = specrun.start("generate", "x", "-m", endless, "-c", "20000", "--speculate", "off", "--json")
    assert process.stderr
    assert b"16384 tokens" in readline(process.stderr)  # the model is loaded
    loaded = cpu_seconds(process)
    wait_until(lambda: cpu_seconds(process) > loaded + 0.5, "passes that write the answer")
    process.send_signal(signal.SIGINT)
    stdout, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == INTERRUPTED
    answer = json.loads(stdout)
    assert answer["finish_reason"] == "interrupted"
    assert answer["completion_tokens"] == len(answer["token_ids"]) > 0


def test_ctrl_c_while_jsonl_waits_for_a_line_ends_it(specrun: Specrun, script: Path) -> None:
    process = specrun.start("generate", "--jsonl", "-m", script, "--speculate", "off", stdin=subprocess.PIPE)
    assert process.stdin
    assert process.stdout
    process.stdin.write(b'{"prompt": "x"}\n')
    process.stdin.flush()
    assert json.loads(readline(process.stdout))["text"] == SCRIPT_TEXT
    wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_SLEEPING, "a process that waits")
    process.send_signal(signal.SIGINT)
    assert process.wait(TIMEOUT_S) == INTERRUPTED
    stdout, stderr = process.communicate()
    assert stdout == b""
    assert b"--output FILE" in stderr


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs a named pipe")
def test_ctrl_c_while_a_file_is_read(specrun: Specrun, tmp_path: Path) -> None:
    prompt = tmp_path / "slow.txt"
    os.mkfifo(prompt)
    process = specrun.start("generate", "-f", prompt)
    writer = os.open(prompt, os.O_WRONLY)  # waits until specrun reads, and then keeps it waiting
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    os.close(writer)
    assert (process.returncode, stdout, stderr) == (INTERRUPTED, b"", b"")


def cpu_seconds(process: subprocess.Popen[bytes]) -> float:
    """How long the process has been computing."""
    return float(psutil.Process(process.pid).cpu_times().user)


def readline(stream: Any) -> bytes:
    """A line, or an assertion error if none comes: a hanging read would stop all tests."""
    lines: list[bytes] = []
    thread = threading.Thread(target=lambda: lines.append(stream.readline()), daemon=True)
    thread.start()
    thread.join(TIMEOUT_S)
    assert lines, "no line came"
    return lines[0]


@pytest.mark.slow
def test_a_prompt_is_read_once(here: SpecrunHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_states, "FEWEST", 16)
    prompt, said = "def read_config(path):\n    with open(path) as file:\n" * 4, list[str]()

    def run(*arguments: str, **environment: str) -> dict[str, Any]:
        command = ("generate", prompt, "-m", "embedded", "--json", "-n", "4", "--no-learn", "--draft", "none")
        result = here(*command, *arguments, **environment)
        assert result.code == 0, result
        said.append(result.stderr)
        return dict(json.loads(result.stdout))

    def counts(answer: dict[str, Any]) -> tuple[int, int]:
        assert answer["text"] == first["text"]
        return answer["prompt_tokens_restored"], answer["prompt_tokens_decoded"]

    run("--raw")  # from a pipe
    assert not (tmp_path / "cache" / "prompts").exists()
    first = run("--stats")
    n = first["prompt_tokens"] - 1
    assert counts(first) == (0, n)
    anew = r"kept +read anew: none was kept of this model, build and settings; now kept, \d+ .B\n"
    assert re.search(anew, said[-1])
    assert counts(run()) == (n, 0)
    assert counts(run("--no-prompt-cache")) == (0, n)
    assert counts(run(SPECRUN_PROMPT_CACHE="0")) == (0, n)
    assert run("--raw", "--prompt-cache")["prompt_tokens_restored"] > 16
    assert "kept" not in here("generate", "x", "-m", "embedded", "--stats", "-n", "1").stderr, (
        "few tokens are not looked for"
    )


class Stdin(io.TextIOWrapper):
    """stdin with the given bytes, on a terminal or not."""

    def __init__(self, data: bytes, terminal: bool = False) -> None:
        super().__init__(io.BytesIO(data), encoding="utf-8")
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "prompt.txt"
    path.write_text("from a file\n")
    return path


def pipe(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr("sys.stdin", Stdin(data))


def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Stdin(b"never read", terminal=True))


def test_argument_files_and_stdin_are_joined_in_this_order(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    pipe(monkeypatch, b"from stdin\r\n")
    assert read_text("argument", [file, file]) == "argument\nfrom a file\nfrom a file\nfrom stdin"


def test_a_terminal_is_not_read(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    terminal(monkeypatch)
    assert read_text("argument", []) == "argument"
    assert read_text(None, [file]) == "from a file"
    with pytest.raises(PromptError, match="no prompt"):
        read_text(None, [])


def test_a_dash_is_stdin_even_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal(monkeypatch)
    assert read_text(STDIN, []) == "never read"


def test_only_the_last_newline_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, b"\n def f():\n\n")
    assert read_text(None, []) == "\n def f():\n"


def test_a_byte_order_mark_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, b"\xef\xbb\xbftext")
    assert read_text(None, []) == "text"
    pipe(monkeypatch, b'\xef\xbb\xbf{"prompt": "a"}\n')
    assert list(read_lines(None, [])) == [PromptLine(1, "a", number=1, has_id=False)]


@pytest.mark.parametrize("data", [b"", b"\n", b" \t\n \n"])
def test_a_prompt_without_text_is_refused(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    pipe(monkeypatch, data)
    with pytest.raises(PromptError, match="empty"):
        read_text("", [])


def test_bytes_that_are_not_utf8_are_located(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, "é".encode() + b"\xe9")
    with pytest.raises(PromptError, match=r"stdin is not UTF-8 \(byte 0xe9 at offset 2\)"):
        read_text(None, [])


def test_json_lines_are_numbered_where_they_have_no_id(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, b'{"prompt": "a"}\n\n{"prompt": "b", "id": "x"}\r\n{"prompt": "c"}')
    assert list(read_lines(None, [])) == [
        PromptLine(1, "a", number=1, has_id=False),
        PromptLine("x", "b", number=3),
        PromptLine(4, "c", number=4, has_id=False),
    ]


def test_the_argument_goes_before_each_json_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, b'{"prompt": "a"}\n{"prompt": "b"}\n')
    assert [line.prompt for line in read_lines("do:", [])] == ["do:\na", "do:\nb"]
    pipe(monkeypatch, b'{"prompt": "a"}\n')
    assert [line.prompt for line in read_lines(STDIN, [])] == ["a"]


def test_json_lines_of_files_come_before_those_of_stdin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_bytes(b'{"prompt": "a"}\n\xff\n{"prompt": "b"}\n')
    pipe(monkeypatch, b'{"prompt": "c"}\n')
    assert [line.prompt for line in read_lines(None, [file])] == ["a", "", "b"]
    lines = list(read_lines(None, [Path(STDIN), file]))
    assert [(line.id, line.prompt) for line in lines] == [(1, "a"), (2, ""), (3, "b"), (4, "c")]


def test_a_line_separator_inside_a_json_string_does_not_end_the_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    terminal(monkeypatch)
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "a\u2028b\x85c"}\n', encoding="utf-8")
    assert [line.prompt for line in read_lines(None, [file])] == ["a\u2028b\x85c"]


@pytest.mark.parametrize(
    ("line", "identity", "part"),
    [
        (b"{", 1, "line 1 is not JSON: .* at column 2"),
        (b'"text"', 1, "is no object"),
        (b'{"prompt": 3, "id": "x"}', "x", 'no "prompt"'),
        (b'{"prompt": "", "id": "x"}', "x", "empty prompt"),
        (b'{"prompt": ""}', 1, "empty prompt"),
        (b'{"prompt": "\xff"}', 1, "line 1 is not UTF-8"),
        (b"[" * 100_000, 1, "nested too deeply"),
        (b'{"prompt": ' + b"1" * 5000 + b"}", 1, "a number that is too long"),
        (b'{"prompt": "a", "id": NaN}', 1, "NaN, which is not a number"),
        (b'{"prompt": "a", "id": [{"b": -Infinity}]}', 1, "-Infinity, which is not a number"),
        (b'{"prompt": "a", "id": 1e999}', 1, "1e999, which is not a number"),
    ],
)
def test_a_bad_json_line_is_an_error_of_its_own(
    monkeypatch: pytest.MonkeyPatch, line: bytes, identity: object, part: str
) -> None:
    pipe(monkeypatch, line + b'\n{"prompt": "good"}')
    bad, good = read_lines(None, [])
    assert (bad.id, bad.number) == (identity, 1)
    assert re.search(part, bad.error or "")
    assert good == PromptLine(2, "good", number=2, has_id=False)


def test_a_missing_file_is_told_before_any_line_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="cannot be read"):
        read_lines(None, [tmp_path / "missing"])
    with pytest.raises(PromptError, match="cannot be read"):
        read_text(None, [tmp_path])


def test_json_lines_need_a_source(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal(monkeypatch)
    with pytest.raises(PromptError, match="no prompts"):
        read_lines("argument", [])
