"""The command itself: help, versions, usage errors, and what it must not import for them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from specrun import __version__
from specrun.errors import ModelFileError
from specrun.llama import library
from tests.conftest import Specrun, SpecrunHere
from tests.models import edited


@pytest.mark.parametrize("arguments", [["--help"], ["generate", "--help"], ["chat", "-h"]])
def test_help_goes_to_stdout(specrun: Specrun, arguments: list[str]) -> None:
    result = specrun(*arguments)
    assert (result.code, result.stderr) == (0, "")
    assert "Usage: specrun" in result.stdout


def test_help_is_one_paragraph_where_its_source_is_wrapped(specrun: Specrun) -> None:
    assert "in one pass and keeps what it would have written itself" in specrun("--help-all", COLUMNS="200").stdout


def test_without_a_command_it_shows_the_help(specrun: Specrun) -> None:
    result = specrun()
    assert result.code == 2
    assert "generate" in result.stdout
    assert "chat" in result.stdout


def test_version_names_specrun_its_bindings_llama_cpp_and_the_backends(specrun: Specrun) -> None:
    result = specrun("--version")
    assert (result.code, result.stderr) == (0, "")
    for part in (__version__, library.bindings_version(), library.build(), *library.backends()):
        assert part in result.stdout


@pytest.mark.slow
def test_help_does_not_wait_for_heavy_imports() -> None:
    program = """
import sys
from specrun.cli import main
sys.argv = ["specrun", "generate", "--help"]
try:
    main()
finally:
    heavy = {"llama_cpp", "numpy", "jinja2", "prompt_toolkit", "starlette", "uvicorn", "specrun.serving"}
    print("imported:", sorted(heavy & set(sys.modules)))
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.stdout.endswith("imported: []\n"), run


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--bogus"], "--bogus"),
        (["bogus"], "bogus"),
        (["generate", "--bogus"], "--bogus"),
        (["generate", "a", "b"], "(b)"),
        (["generate", "x", "-n", "many"], "--max-tokens"),
        (["generate", "x", "--speculate", "hard"], "'--speculate': 'hard' is not one of"),
        (["generate", "-f"], "-f"),
        (["chat", "a", "b", "c"], "(c)"),
    ],
)
def test_a_usage_error_is_one_line(here: SpecrunHere, arguments: list[str], part: str) -> None:
    here(*arguments).assert_fails(2, part, "--help")


def test_debug_shows_llama_cpps_log_and_the_traceback(specrun: Specrun, tmp_path: Path, random_model: Path) -> None:
    names = {"general.architecture": "llama99", "general.name": "\x1b]0;title\a"}
    result = specrun("--debug", "generate", "x", "-m", edited(tmp_path / "new.gguf", random_model, names))
    assert result.code == ModelFileError.exit_code
    assert "Traceback" in result.stderr
    assert "llama_model_load: error" in result.stderr
    assert "\\u001b]0;title\\u0007" in result.stderr  # the log shows metadata, which must not command the terminal
    assert "\x1b" not in result.stderr


def test_ctrl_c_while_python_still_imports_is_quiet() -> None:
    program = """
import sys
class CtrlC:
    def find_spec(self, name, path, target=None):
        if name == "typer":
            raise KeyboardInterrupt
sys.meta_path.insert(0, CtrlC())
from specrun.cli import main
main()
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (130, "", "")
