"""`specrun generate --jsonl`: several lines at a time, their order, and files that a later run goes on with."""

from __future__ import annotations

import errno
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pexpect
import psutil
import pytest

from specrun.catalog import embedded
from specrun.cli import writing
from tests.conftest import Specrun, SpecrunHere
from tests.waiting import TIMEOUT_S, wait_until

USAGE, PROMPT_ERROR = 2, 5
N = 12
OPTIONS = ("--jsonl", "--raw", "-n", "24", "--temp", "0.8", "--speculate", "tree")


def lines(tmp_path: Path, n: int = N) -> Path:
    file = tmp_path / "prompts.jsonl"
    prompts = [{"id": f"p{i}", "prompt": f"def f{i}(x):\n    return {'x + 1' if i % 2 else '['}"} for i in range(n)]
    file.write_text("".join(f"{json.dumps(prompt)}\n" for prompt in prompts))
    return file


def texts(output: str) -> list[tuple[Any, Any, Any]]:
    """What depends on no time."""
    values = map(json.loads, output.splitlines())
    return [(value["id"], value.get("token_ids"), value.get("error")) for value in values]


def places(output: str) -> list[tuple[Any, Any]]:
    """By what each object says whose answer it is: its `id`, and its `line` if it has one."""
    return [(value["id"], value.get("line")) for value in map(json.loads, output.splitlines())]


@pytest.fixture
def expected(here: SpecrunHere, tmp_path: Path) -> list[tuple[Any, Any, Any]]:
    result = here("generate", *OPTIONS, "--parallel", "1", "-f", lines(tmp_path))
    assert result.code == 0, result
    return texts(result.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["auto", "3"])
def test_several_at_a_time_are_the_same_texts_in_the_order_of_the_lines(
    here: SpecrunHere, tmp_path: Path, expected: list[Any], parallel: str
) -> None:
    result = here("generate", *OPTIONS, "-np", parallel, "-f", lines(tmp_path))
    assert result.code == 0, result
    assert texts(result.stdout) == expected
    ready = here("generate", *OPTIONS, "-np", parallel, "-f", lines(tmp_path), "--as-ready")
    assert sorted(texts(ready.stdout)) == sorted(expected)


@pytest.mark.slow
def test_a_run_that_is_killed_twice_ends_with_the_file_of_an_undisturbed_one(
    specrun: Specrun, tmp_path: Path, expected: list[Any]
) -> None:
    file, out = lines(tmp_path), tmp_path / "answers.jsonl"
    for n in (2, 6):
        process = specrun.start("generate", *OPTIONS, "-np", "2", "-f", file, "--output", out)
        wait_until(lambda n=n: out.exists() and out.read_bytes().count(b"\n") >= n, "some answers")
        process.kill()
        process.wait(TIMEOUT_S)
        process.communicate()
    assert 6 <= out.read_bytes().count(b"\n") < N
    with out.open("ab") as half:
        half.write(b'{"id": "p11", "te')
    result = specrun("generate", *OPTIONS, "-np", "2", "-f", file, "--output", out)
    assert (result.code, result.stdout) == (0, "")
    assert "already are left out" in result.stderr
    assert "not complete" in result.stderr
    assert texts(out.read_text()) == expected
    assert [path.name for path in sorted(tmp_path.iterdir()) if "answers" in path.name] == ["answers.jsonl"]


@pytest.mark.slow
def test_answers_of_something_else_are_told_and_stay(here: SpecrunHere, tmp_path: Path) -> None:
    file, out = lines(tmp_path, 2), tmp_path / "answers.jsonl"
    few = ("--jsonl", "--raw", "-n", "2", "-f", file, "-o", out)
    assert here("generate", *few).code == 0
    before = out.read_bytes()
    here("generate", *few, "--temp", "0.1").assert_fails(USAGE, "with other options or by another model", "p0")
    file.write_text(file.read_text().replace("f0", "g0"))
    here("generate", *few).assert_fails(USAGE, "to another prompt", "p0")
    file.write_text('{"id": 1, "prompt": "a"}\n{"id": 1, "prompt": "b"}\n')
    here("generate", *few).assert_fails(USAGE, "lines 1 and 2 have the same id")
    assert out.read_bytes() == before, "what is wrong with known lines is told before anything is written"
    for text in ("a poem\n", "a poem"):
        out.write_text(text)
        here("generate", *few, "-m", file).assert_fails(USAGE, "line 1", "--output")
        assert out.read_text() == text
    fresh = (*few[:-1], tmp_path / "fresh.jsonl", "-m", file)
    assert here("generate", *fresh).code
    assert not (tmp_path / "fresh.jsonl").exists(), "what is wrong with the file is told before the model is loaded"
    for other in (tmp_path, Path(os.devnull)):
        here("generate", *few[:-1], other).assert_fails(USAGE, str(other), "no regular file")
    here("generate", *few, "--as-ready").assert_fails(USAGE, "--as-ready")


@pytest.mark.slow
def test_a_line_that_failed_is_tried_again_and_the_others_are_not(here: SpecrunHere, tmp_path: Path) -> None:
    file, out = lines(tmp_path, 2), tmp_path / "answers.jsonl"
    good = file.read_text()
    file.write_text('{"id": "p9", "prompt": " "}\n' + good)
    few = ("--jsonl", "--raw", "-n", "2", "-f", file, "-o", out)
    result = here("generate", *few)
    assert result.code == PROMPT_ERROR
    assert [identity for identity, *_ in texts(out.read_text())] == ["p9", "p0", "p1"]
    before = out.read_text().splitlines()
    assert ["made_from" in line for line in before] == [False, True, True]
    file.write_text('{"id": "p9", "prompt": "x"}\n' + good)
    assert here("generate", *few).code == 0
    after = out.read_text().splitlines()
    assert after[1:] == before[1:]
    assert json.loads(after[0])["completion_tokens"] == 2


@pytest.mark.slow
def test_two_processes_do_not_write_one_file(specrun: Specrun, tmp_path: Path) -> None:
    file, out = lines(tmp_path), tmp_path / "answers.jsonl"
    first = specrun.start("generate", *OPTIONS, "-f", file, "-np", "1", "--output", out, stdin=subprocess.PIPE)
    wait_until(out.exists, "the first run has begun")
    specrun("generate", *OPTIONS, "-f", file, "--output", out).assert_fails(USAGE, "another specrun writes", str(out))
    first.communicate(timeout=TIMEOUT_S)
    assert (first.returncode, len(texts(out.read_text()))) == (0, N)


@pytest.mark.slow
def test_a_line_that_fails_takes_no_answer_away(here: SpecrunHere, tmp_path: Path) -> None:
    file, out = lines(tmp_path, 2), tmp_path / "answers.jsonl"
    few = ("--jsonl", "--raw", "-n", "2", "-f", file, "-o", out)
    assert here("generate", *few).code == 0
    before = out.read_text()
    file.write_text(file.read_text() + '{"id": "p0", "prompt": ""}\n')
    result = here("generate", *few)
    assert result.code == PROMPT_ERROR
    assert "empty prompt; the answer with this id stays" in result.stderr
    assert out.read_text() == before


@pytest.mark.slow
def test_a_disk_that_is_full_when_answers_are_put_in_order_is_not_called_stdout(
    here: SpecrunHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    file, out = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    few = ("--jsonl", "--raw", "-n", "2", "-f", file, "-o", out)
    file.write_text('{"id": "a", "prompt": "a"}\n')
    assert here("generate", *few).code == 0
    file.write_text('{"id": "b", "prompt": "b"}\n{"id": "a", "prompt": "a"}\n')
    with monkeypatch.context() as patch:
        patch.setattr("specrun.cli.answers.whole_file", full)
        result = here("generate", *few)
    assert result.code == 1
    why = "cannot be put into the order of its lines: No space left on device; it has all answers"
    assert f"{out} {why}" in result.stderr
    assert places(out.read_text()) == [("a", None), ("b", None)]
    assert here("generate", *few).code == 0
    assert places(out.read_text()) == [("b", None), ("a", None)]


@pytest.mark.slow
def test_a_wrong_line_without_an_id_takes_no_other_line_s_place(here: SpecrunHere, tmp_path: Path) -> None:
    file, out = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    few = ("--jsonl", "--raw", "-n", "2", "-f", file, "-o", out)
    file.write_text('{"id": 2, "prompt": "a"}\n{"prompt": "b"\n{"id": 4, "prompt": "c"}\n[]\n')
    for _ in range(2):
        assert here("generate", *few).code == PROMPT_ERROR
        assert places(out.read_text()) == [(2, None), (2, 2), (4, None), (4, 4)]
    file.write_text(
        '{"id": 2, "prompt": "a"}\n{"prompt": "b", "id": "b"}\n{"id": 4, "prompt": "c"}\n{"prompt": "d", "id": 1}\n'
    )
    assert here("generate", *few).code == 0
    assert [(identity, error) for identity, _, error in texts(out.read_text())] == [
        (2, None),
        ("b", None),
        (4, None),
        (1, None),
    ]


@pytest.mark.slow
def test_a_line_without_an_id_is_told_from_one_whose_id_is_its_number(here: SpecrunHere, tmp_path: Path) -> None:
    file, out = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    few = ("--jsonl", "--raw", "-n", "2", "-f", file)
    file.write_text('{"id": 2, "prompt": "a"}\n{"prompt": "b"}\n{"prompt": "c"}\n')
    wanted = [(2, None), (2, 2), (3, 3)]
    assert places(here("generate", *few).stdout) == wanted
    for _ in range(2):
        result = here("generate", *few, "-o", out)
        assert result.code == 0, result
        assert places(out.read_text()) == wanted
    assert "already are left out" in result.stderr
    whole = out.read_text()
    file.write_text('{"id": 2, "prompt": "a"}\n')
    assert here("generate", *few, "-o", out).code == 0
    assert out.read_text() == whole, "answers of lines that do not come stay"
    file.write_text('{"id": 2, "prompt": "a"}\n{"prompt": "x"}\n')
    here("generate", *few, "-o", out).assert_fails(USAGE, "an answer of line 2 already, to another prompt")
    file.write_text('{"id": 2, "prompt": "a"}\n{"prompt": "b"\n{"prompt": "c"}\n')
    result = here("generate", *few, "-o", out)
    assert result.code == PROMPT_ERROR
    assert "; the answer of line 2 stays" in result.stderr
    assert out.read_text() == whole


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="a folder in which nobody can make files")
def test_a_file_that_cannot_be_made_is_not_called_another_s(here: SpecrunHere, tmp_path: Path) -> None:
    few = ("--jsonl", "--raw", "-n", "2", "-f", lines(tmp_path, 1))
    for out in (Path("/proc/x"), tmp_path / "missing" / "answers.jsonl"):
        here("generate", *few, "-o", out).assert_fails(USAGE, f"{out} cannot be written")
    assert not (tmp_path / "missing").exists()


@pytest.mark.slow
def test_other_types_of_the_cache_are_other_options(here: SpecrunHere, tmp_path: Path) -> None:
    few = ("--jsonl", "--raw", "-n", "2", "-f", lines(tmp_path, 2), "-o", tmp_path / "answers.jsonl")
    assert here("generate", *few).code == 0
    here("generate", *few, "--cache-type-k", "q8_0").assert_fails(USAGE, "with other options")


@pytest.mark.skipif(sys.platform == "win32", reason="limits of processes are Unix's")
@pytest.mark.slow
def test_a_full_disk_leaves_whole_lines(specrun: Specrun, tmp_path: Path) -> None:
    import resource

    file, out = lines(tmp_path, 6), tmp_path / "answers.jsonl"
    few = ("--jsonl", "--raw", "-n", "2", "-f", file, "-o", out)
    most = 2500  # bytes; each line has some 800

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    environment = {**os.environ, "SPECRUN_DATA_DIR": str(tmp_path / "data")}
    process = subprocess.run(
        specrun.command("generate", *few), preexec_fn=limit, capture_output=True, env=environment, timeout=TIMEOUT_S
    )
    assert process.returncode == 1
    assert b"the same command goes on from there" in process.stderr
    assert out.read_bytes().endswith(b"}\n")
    assert 1 <= len(texts(out.read_text())) < 6
    assert specrun("generate", *few).code == 0
    assert len(texts(out.read_text())) == 6


@pytest.mark.slow
def test_ctrl_c_writes_what_is_finished(specrun: Specrun, tmp_path: Path, expected: list[Any]) -> None:
    process = specrun.start("generate", *OPTIONS, "-np", "2", "-f", lines(tmp_path))
    assert process.stdout
    first = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    rest, stderr = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130
    assert b"Traceback" not in stderr
    found = texts((first + rest).decode())
    n_cut = (first + rest).count(b'"finish_reason": "interrupted"')
    assert b"%d of %d texts finished" % (len(found) - n_cut, N) in stderr
    assert (b", %d written as far as" % n_cut in stderr) == (n_cut > 0)
    assert found[0] == expected[0]
    whole = {identity: tokens for identity, tokens, _ in expected}
    assert all(whole[identity][: len(tokens)] == tokens for identity, tokens, _ in found)


@pytest.mark.slow
def test_ctrl_c_counts_what_is_written(specrun: Specrun, endless: Path, tmp_path: Path) -> None:
    command = "generate", *OPTIONS[:2], "-m", endless, "-c", "16000", "-np", "2", "-f", lines(tmp_path, 2)
    process = specrun.start(*command, "--speculate", "off")
    loaded = psutil.Process(process.pid)
    wait_until(lambda: loaded.cpu_times().user > 3, "passes that write the texts")
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130
    assert [json.loads(line)["finish_reason"] for line in stdout.splitlines()] == ["interrupted"] * 2
    assert b"stopping as soon as the pass that may be running is over\n" in stderr
    assert b"0 of 2 texts finished, 2 written as far as they came; with --output FILE" in stderr


@pytest.mark.parametrize("arguments", [("-np", "2"), ("-o", "x"), ("--as-ready",)])
def test_options_for_many_prompts_need_lines(here: SpecrunHere, arguments: tuple[str, ...]) -> None:
    here("generate", "x", *arguments).assert_fails(USAGE, "--jsonl")


def test_an_argument_without_lines_and_a_dash_are_told(here: SpecrunHere) -> None:
    here("generate", "--jsonl", "hi").assert_fails(PROMPT_ERROR, "there is no line")
    here("generate", "--jsonl", "-o", "-", stdin='{"prompt": "x"}').assert_fails(USAGE, "stdout")


@pytest.mark.parametrize("given", ["0", "many", "33", "-1", "1.5"])
def test_a_number_of_texts_that_cannot_be_is_refused(here: SpecrunHere, given: str) -> None:
    here("generate", "--jsonl", "--parallel", given, stdin='{"prompt": "x"}').assert_fails(USAGE, "--parallel")


@pytest.mark.slow
def test_progress_is_shown_on_a_terminal_where_the_answers_go_to_a_file(specrun: Specrun, tmp_path: Path) -> None:
    out = tmp_path / "answers.jsonl"
    terminal = specrun.on_terminal(
        "generate", "--jsonl", "--raw", "-m", embedded.TARGET, "-n", "200", "-f", lines(tmp_path, 8), "-o", out
    )
    terminal.expect("of 8 texts", timeout=TIMEOUT_S)
    terminal.expect("tokens/s", timeout=TIMEOUT_S)
    terminal.sendintr()
    terminal.expect(r"(\d+) texts?, (\d+) tokens(?: \((\d+) of them of texts that had not ended\))? in")
    n_said, n_tokens, n_lost = (int(number or 0) for number in terminal.match.groups())
    assert n_lost == n_tokens if n_said == 0 else n_lost < n_tokens
    terminal.expect("of 8 texts kept; the same command goes on", timeout=TIMEOUT_S)
    terminal.expect(pexpect.EOF)
    assert out.read_text().count('"text"') == n_said, "texts that Ctrl-C ended are in no file"


def test_the_time_left_counts_what_is_written_of_texts_that_have_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing.time, "monotonic", lambda: 4.0)
    lines_, answers = Mock(known=[0] * 60), Mock(after_ctrl_c="")
    asking = writing._Asking(lines_, Mock(), answers, n_done=1, n_ended=200, n_tokens=2981, started=0.0)
    assert asking.progress().startswith("1 of 60 texts, 745.2 tokens/s · about 12 s left")


def test_no_line_at_all_is_said_and_no_file_is_made(here: SpecrunHere, tmp_path: Path) -> None:
    file, out = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    file.write_text("\n\n")
    result = here("generate", "--jsonl", "-f", file, "-o", out)
    assert (result.code, result.stdout) == (0, "")
    assert "there is no line" in result.stderr
    assert not out.exists()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such terminals")
def test_lines_reach_a_file_while_progress_is_drawn(endless: Path, tmp_path: Path) -> None:
    given, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    given.write_text('{"prompt": "x"}\n' * 4)
    command = Specrun.command("generate", "--jsonl", "-m", endless, "--speculate", "off", "-n", "800")
    shell = f'{shlex.join(command)} <"$0" >"$1"'
    terminal = pexpect.spawn("sh", ["-c", shell, str(given), str(out)], encoding="utf-8", timeout=TIMEOUT_S)
    drawn = terminal.read()
    terminal.close()
    assert "of 4 texts" in drawn
    assert '"text"' not in drawn
    assert [json.loads(line)["finish_reason"] for line in out.read_text().splitlines()] == ["length"] * 4
