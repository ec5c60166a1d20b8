"""Benchmark prompts, shipped and the user's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from specrun import bench
from specrun.bench import BenchPrompt
from specrun.errors import PromptError


def test_every_kind_ships_enough_prompts_to_choose_on_one_and_measure_on_others() -> None:
    for kind in bench.KINDS:
        assert len(bench.shipped([kind])) >= 3
    assert len(bench.shipped()) == sum(len(bench.shipped([kind])) for kind in bench.USUAL)


def test_own_prompts_may_be_plain_or_mt_bench_questions(tmp_path: Path) -> None:
    file = tmp_path / "question.jsonl"
    file.write_text(
        '{"prompt": "one"}\n\n{"prompt": "two", "kind": "code"}\n'
        '{"question_id": 81, "category": "writing", "turns": ["three", "and then"]}\n',
        encoding="utf-8",
    )
    assert bench.load(file) == [
        BenchPrompt("prompts", "one"),
        BenchPrompt("code", "two"),
        BenchPrompt("writing", "three"),
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no prompts"),
        ("{", "line 1 is not JSON"),
        ("[" * 100_000, "line 1 is nested too deeply"),
        ("9" * 5000, "line 1 has a number that is too long"),
        ('{"prompt": "a"}\n[]', "line 2 has no"),
        ('{"turns": []}', "line 1 has no"),
        ('{"prompt": "  "}', "line 1 has no"),
        ('{"prompt": 3}', "line 1 has no"),
    ],
)
def test_bad_files_are_refused_by_line(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(PromptError, match=reason):
        bench.load(file)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="No such file"):
        bench.load(tmp_path / "nothing.jsonl")
