"""`python -m scripts.make_head` as a user runs it; most without PyTorch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from scripts.make_head.__main__ import main
from specrun.catalog import embedded, made
from tests import foreign_files
from tests.conftest import ENDING_SIGNALS
from tests.models import random_llama
from tests.scripts.make_head.orders import files, registered_head

USAGE, MODEL_FILE, PAIR, PROMPT = 2, 3, 4, 5  # exit codes, see specrun.errors
ROOT = Path(__file__).parents[3]
TARGET = str(embedded.TARGET)
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def make(capfd: pytest.CaptureFixture[str]) -> Run:
    """The script in this process. Returns its exit code, stdout and stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        handlers = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
        code = main(arguments)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        return code, *capfd.readouterr()

    return run


def assert_fails(result: tuple[int, str, str], code: int, part: str) -> None:
    """It failed as it should: nothing on stdout, one line on stderr that has the part."""
    assert result[:2] == (code, ""), result
    assert result[2].startswith("make_head: "), result
    assert result[2].count("\n") == 1, result
    assert part in result[2], result


def test_without_pytorch_it_says_what_to_install(make: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert_fails(make(TARGET), USAGE, "make_head needs PyTorch; in a clone of specrun: pip install '.[train]'")
    assert files() == []


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        ([TARGET, "--hours", "0"], USAGE, "--hours must be above 0"),
        ([TARGET, "--vocab", "0"], USAGE, "--vocab must be above 0"),
        ([TARGET, "--output", "nowhere/head.gguf"], USAGE, "a folder that does not exist"),
        ([TARGET, "--texts", "none.jsonl"], PROMPT, "none.jsonl cannot be read"),
        ([str(embedded.HEAD)], MODEL_FILE, "an EAGLE-3 head"),
        (["none.gguf"], MODEL_FILE, "none.gguf: no such file"),
    ],
)
def test_wrong_arguments_end_in_one_line(make: Run, arguments: list[str], code: int, part: str) -> None:
    assert_fails(make(*arguments), code, part)
    assert files() == []


def test_a_target_without_enough_layers(make: Run, tmp_path: Path) -> None:
    assert_fails(make(str(random_llama(tmp_path / "target.gguf", n_layer=2))), PAIR, "no head can be made")


def test_a_target_without_a_tokenizer(make: Run, tmp_path: Path) -> None:
    file = foreign_files.GGUFS["no tokenizer"](tmp_path / "model.gguf")
    assert_fails(make(str(file)), MODEL_FILE, f"{file} has no tokenizer")


@pytest.mark.slow
def test_a_head_is_forgotten(make: Run) -> None:
    registered_head()
    code, stdout, stderr = make(TARGET, "--forget")
    assert (code, stdout) == (0, "")
    assert "free again" in stderr
    assert files() == []
    assert_fails(make(TARGET, "--forget"), USAGE, "no head was made for target.gguf")
    assert_fails(make(TARGET, "--forget", "--vocab", "9"), USAGE, "--forget takes no other option")


def test_an_unfinished_head_is_forgotten(make: Run) -> None:
    work = made.unfinished_head(embedded.TARGET)
    work.mkdir(parents=True)
    (work / "texts-00000.npy").write_bytes(b"states")
    code, _, stderr = make(TARGET, "--forget")
    assert code == 0
    assert "unfinished head were deleted" in stderr
    assert files() == []


@pytest.mark.long
@pytest.mark.skipif(find_spec("torch") is None, reason="it trains")
def test_the_whole_command_in_a_process_of_its_own(make: Run, tmp_path: Path) -> None:
    texts = tmp_path / "texts.jsonl"
    texts.write_text(json.dumps({"prompt": "def read(path):\n"}) + "\n")
    path = tmp_path / "mine.gguf"
    options = ["--hours", "0.004", "--vocab", "700", "--texts", str(texts), "-o", str(path)]
    command = [sys.executable, "-m", "scripts.make_head", TARGET, *options]
    result = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"{path}\n"
    assert "minutes" in result.stderr
    assert "as this target has no profile" in result.stderr
    assert "\x1b" not in result.stderr
    assert files() == sorted(["head.json", made.home(embedded.TARGET).name])
    assert "no longer used" in make(TARGET, "--forget")[2]
    assert path.exists()


@pytest.mark.slow
def test_it_runs_from_a_clone_without_pytorch(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "scripts.make_head", str(tmp_path / "none.gguf")]
    result = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False)
    assert_fails((result.returncode, result.stdout, result.stderr), MODEL_FILE, "none.gguf: no such file")
