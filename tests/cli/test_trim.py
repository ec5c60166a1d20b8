"""`specrun models trim` as a user runs it, and what other commands make of its draft."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specrun.catalog import embedded
from tests.conftest import SpecrunHere

USAGE, MODEL_FILE = 2, 3  # exit codes, see specrun.errors


def trim(here: SpecrunHere, output: Path, draft: Path = embedded.DRAFT, n: int = 1024) -> Path:
    result = here("models", "trim", str(draft), "--vocab", str(n), "--output", str(output))
    assert result.code == 0, result.stderr
    assert result.stderr.endswith("give it as --draft\n")
    return output


@pytest.mark.slow
def test_a_trimmed_draft_writes_the_targets_text(here: SpecrunHere, tmp_path: Path) -> None:
    trimmed = trim(here, tmp_path / "trimmed.gguf")
    generate = ("generate", "def read(path):\n", "--raw", "-n", "24", "--temp", "0", "--json", "--target")
    texts = []
    for options in (["--draft", "none"], ["--draft", str(trimmed), "--speculate", "tree"]):
        result = here(*generate, str(embedded.TARGET), *options)
        assert result.code == 0, result.stderr
        texts.append(json.loads(result.stdout))
    plain, drafted = texts
    assert drafted["text"] == plain["text"]
    assert drafted["passes"] < plain["passes"]


def test_info_tells_how_many_tokens_are_left(here: SpecrunHere, tmp_path: Path) -> None:
    trimmed = trim(here, tmp_path / "trimmed.gguf")
    lines = here("models", "info", str(trimmed)).stdout
    assert "1,024 of 2,048 tokens" in lines
    facts = json.loads(here("models", "info", str(trimmed), "--json").stdout)
    assert facts["tokenizer"] | {"tokens": 2048, "trimmed": 1024} == facts["tokenizer"]
    assert facts["tokenizer"]["model"] == "gpt2"


def test_what_cannot_be_trimmed_is_one_line(here: SpecrunHere, tmp_path: Path) -> None:
    def failing(draft: str | Path, n: str, output: Path, code: int, *parts: str) -> None:
        here("models", "trim", str(draft), "--vocab", n, "--output", str(output)).assert_fails(code, *parts)

    output = tmp_path / "trimmed.gguf"
    failing(embedded.DRAFT, "3", output, USAGE, "--vocab must be a number of tokens above")
    failing(tmp_path / "none.gguf", "1024", output, MODEL_FILE, "no such file")
    failing(embedded.HEAD, "1024", output, MODEL_FILE, "an EAGLE-3 head")
    failing(embedded.DRAFT, "1024", tmp_path / "nowhere" / "trimmed.gguf", USAGE, "a folder that does not exist")
    assert not output.exists()
    trim(here, output)
    failing(embedded.DRAFT, "512", output, USAGE, "exists already; delete it or choose another name")
    failing(output, "512", tmp_path / "again.gguf", MODEL_FILE, "is a trimmed draft")
    target = ("generate", "x", "--target", str(output), "--draft", "none")
    here(*target).assert_fails(MODEL_FILE, "which has no tokenizer; give it as --draft")
