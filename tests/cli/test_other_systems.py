"""The command as on Windows and macOS, with what they lack missing (tests/other_system.py)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from specrun.catalog import embedded
from tests.conftest import SCRIPT_TEXT, Specrun, SpecrunHere
from tests.other_system import command

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="Linux plays the others")]

PAIR = ["--target", embedded.TARGET, "--draft", embedded.DRAFT]
PROMPT = "def read(path):"
ON_BOTH = pytest.mark.parametrize("there", ["win32", "darwin"], indirect=True)


class Elsewhere(Specrun):
    """The command as on another system."""

    def __init__(self, start: list[str]) -> None:
        super().__init__()
        self.start_with = start

    def command(self, *arguments: str | Path) -> list[str]:
        return [*self.start_with, *Specrun.command(*arguments)[3:]]


@pytest.fixture
def there(specrun: Specrun, request: pytest.FixtureRequest, tmp_path: Path) -> Specrun:
    """The command on Windows, or on the system that a test names."""
    elsewhere = Elsewhere(command(tmp_path, getattr(request, "param", "win32")))
    specrun.started = elsewhere.started  # which that fixture ends
    return elsewhere


def test_helps_and_lists(there: Specrun) -> None:
    for arguments in (["--help"], ["models", "list"], ["--version"]):
        result = there(*arguments)
        assert result.code == 0, result
        assert result.stdout


@ON_BOTH
def test_a_text_is_that_of_linux(there: Specrun, here: SpecrunHere) -> None:
    arguments = ["generate", *PAIR, "-n", "24", "--seed", "1", "--speculate", "tree"]
    result = there(*arguments, stdin=PROMPT)
    assert result.code == 0, result
    assert result.stdout == here(*arguments, stdin=PROMPT).stdout


def test_a_file_gets_every_letter(there: Specrun, script: Path) -> None:
    old_console = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    result = there("generate", "x", "-m", script, **old_console)
    assert (result.code, result.stdout) == (0, f"{SCRIPT_TEXT}\n")
    result = there("generate", "x", "-m", script, **old_console, PYTHONIOENCODING="ascii")
    assert (result.code, result.stdout) == (0, f"{SCRIPT_TEXT}\n".replace("é", "?")), "as the user wants it"


def test_a_path_of_windows_is_a_path(there: Specrun) -> None:
    result = there("generate", "x", "--target", r"C:\models\x.gguf")
    result.assert_fails(3, r"C:\models\x.gguf")


def test_a_chat_in_a_console_that_is_not_utf8(there: Specrun, tmp_path: Path) -> None:
    lines = f"Grüße, 漢\n/stats\n/save {tmp_path / 'kept.json'}\n/clear\n/load {tmp_path / 'kept.json'}\n/exit\n"
    process = there.start("chat", *PAIR, "-n", "12", stdin=subprocess.PIPE, PYTHONIOENCODING="cp1252")
    _, stderr = process.communicate(lines.encode())
    assert process.returncode == 0, stderr
    assert "tokens/s" in stderr.decode("cp1252")
    assert "Grüße, 漢" in (tmp_path / "kept.json").read_text("utf-8")


@pytest.mark.reordered  # an own check, as it sees no processor there
@ON_BOTH
def test_the_doctor_says_what_is_for_linux(there: Specrun) -> None:
    result = there("doctor")
    assert result.code == 0, result
    assert "because specrun streams weights on Linux only" in result.stdout
    assert not [line for line in result.stdout.splitlines() if line.startswith(("fail", "warn  fact"))], result


@pytest.mark.reordered
def test_what_was_tuned_is_used(there: Specrun) -> None:
    tuned = there("tune", "--quick", "-c", "128", *PAIR)
    assert tuned.code == 0, tuned
    used = there("generate", "-c", "128", *PAIR, "-n", "4", "--stats", stdin=PROMPT)
    assert "by the profile of this machine" in used.stderr, used
