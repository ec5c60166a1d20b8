"""`specrun models make-head` as a user runs it, and what other commands make of its head; most without PyTorch."""

from __future__ import annotations

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from specrun.catalog import embedded, made
from tests.conftest import SpecrunHere
from tests.making.head.orders import random_head
from tests.models import random_llama

USAGE, MODEL_FILE, PAIR, PROMPT = 2, 3, 4, 5  # exit codes, see specrun.errors
MAKE = ("models", "make-head")
TARGET = str(embedded.TARGET)


@pytest.fixture
def head() -> Path:
    """A head of the embedded target, as the command leaves it."""
    folder = made.home(embedded.TARGET)
    folder.mkdir(parents=True)
    path = random_head(folder / "head-eagle3.gguf")
    made.register(embedded.TARGET, made.MadeDraft(path, "EAGLE-3, at random"), "head")
    return path


def files() -> list[str]:
    return sorted(path.name for path in Path(os.environ["SPECRUN_DATA_DIR"]).glob("drafts/**/*"))


def test_without_pytorch_it_says_what_to_install(here: SpecrunHere, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    here(*MAKE, TARGET).assert_fails(USAGE, "make-head needs PyTorch; in a clone of specrun: pip install '.[train]'")
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
def test_wrong_arguments_end_in_one_line(here: SpecrunHere, arguments: list[str], code: int, part: str) -> None:
    here(*MAKE, *arguments).assert_fails(code, part)
    assert files() == []


def test_a_target_without_enough_layers(here: SpecrunHere, tmp_path: Path) -> None:
    here(*MAKE, str(random_llama(tmp_path / "target.gguf", n_layer=2))).assert_fails(PAIR, "no head can be made")


def test_a_head_is_shown_used_where_named_and_forgotten(here: SpecrunHere, head: Path) -> None:
    assert "EAGLE-3, at random" in here("models", "info", TARGET).stdout
    assert json.loads(here("models", "info", TARGET, "--json").stdout)["made_head"]["path"] == str(head)
    generate = ("generate", "def read(path):\n", "--raw", "-n", "24", "--temp", "0.8", "--seed", "1", "--json")
    plain = json.loads(here(*generate, "--target", TARGET, "--draft", "none").stdout)
    drafted = json.loads(here(*generate, "--target", TARGET, "--draft", str(head), "--speculate", "tree").stdout)
    assert drafted["token_ids"] == plain["token_ids"]
    gone = here(*MAKE, TARGET, "--forget")
    assert (gone.code, gone.stdout) == (0, "")
    assert "free again" in gone.stderr
    assert files() == []
    here(*MAKE, TARGET, "--forget").assert_fails(USAGE, "no head was made for target.gguf")
    here(*MAKE, TARGET, "--forget", "--vocab", "9").assert_fails(USAGE, "--forget takes no other option")


def test_an_unfinished_head_is_forgotten(here: SpecrunHere) -> None:
    work = made.unfinished_head(embedded.TARGET)
    work.mkdir(parents=True)
    (work / "texts-00000.npy").write_bytes(b"states")
    result = here(*MAKE, TARGET, "--forget")
    assert result.code == 0
    assert "unfinished head were deleted" in result.stderr
    assert files() == []


def test_tune_compares_it_with_the_target_alone(head: Path) -> None:
    from specrun.catalog.local_pair import drafts_here

    assert drafts_here(TARGET) == ["none", str(head)]
    assert drafts_here(None) == [str(head), str(embedded.DRAFT)]


@pytest.mark.usefixtures("served")
def test_it_is_deleted_with_its_target(here: SpecrunHere) -> None:
    here("pull", "qwen-14b", "--yes")
    target = Path(here("models", "path", "qwen-14b").stdout.strip())
    path = made.home(target) / "head-eagle3.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"head")
    made.register(target, made.MadeDraft(path, "at random"), "head")
    made.unfinished_head(target).mkdir()
    here("models", "rm", "qwen-14b", "--yes")
    assert files() == []


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="it trains")
def test_the_whole_command(here: SpecrunHere, tmp_path: Path) -> None:
    texts = tmp_path / "texts.jsonl"
    texts.write_text(json.dumps({"prompt": "def read(path):\n"}) + "\n")
    path = tmp_path / "mine.gguf"
    result = here(*MAKE, TARGET, "--hours", "0.004", "--vocab", "700", "--texts", str(texts), "-o", str(path))
    assert result.code == 0, result.stderr
    assert result.stdout == f"{path}\n"
    assert "minutes" in result.stderr
    assert "as this target has no profile" in result.stderr
    assert "\x1b" not in result.stderr
    assert files() == sorted(["head.json", made.home(embedded.TARGET).name])
    assert "no longer used" in here(*MAKE, TARGET, "--forget").stderr
    assert path.exists()
