"""A benchmark to share: all kinds of text in one row, and nothing of its owner."""

from __future__ import annotations

import getpass
import socket
from pathlib import Path

import pytest

from specrun.bench.rows import Row, summarise
from specrun.bench.share import Shared
from specrun.engine.statistics import Statistics
from specrun.speculation.method import OFF
from tests.conftest import SpecrunHere


def row(kind: str, rate: float, passes: int) -> Row:
    samples = [[Statistics(completion_tokens=60, seconds=60 / rate, passes=passes, first_token_seconds=0.5)]]
    return summarise("tree", "tree of 8", kind, samples, samples, None, 0, OFF.plan())


def test_kinds_count_by_their_time_and_passes() -> None:
    shared = Shared.of([row("code", 30, 10), row("prose", 10, 30)])
    assert shared.tokens_per_second == pytest.approx(15)  # 120 tokens in 2 + 6 seconds
    assert shared.tokens_per_pass == pytest.approx(3)


@pytest.mark.slow
def test_one_row_and_a_footnote_without_anything_private(
    here: SpecrunHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "def f(x):"}\n')
    result = here("bench", "--share", "--prompts", prompts, "--repeat", "1", "-n", "6", "-t", "1", "--methods", "auto")
    assert result.code == 0, result
    head, dashes, cells, empty, footnote = result.stdout.splitlines()
    assert head.count("|") == dashes.count("|") == cells.count("|") == 10
    assert "specrun demo target" in cells
    assert "Q8_0" in cells
    assert not empty
    assert "llama.cpp" in footnote
    assert "greedy, 6 tokens an answer" in footnote
    for private in (str(tmp_path), str(Path.home()), getpass.getuser(), socket.gethostname()):
        assert private.lower() not in (cells + footnote).lower().replace("root", "") or private == "root"


def test_it_has_a_form_of_its_own(here: SpecrunHere) -> None:
    here("bench", "--share", "-o", "json").assert_fails(2, "--share has a form of its own")
