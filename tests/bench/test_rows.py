"""How repetitions become a row."""

from __future__ import annotations

import json

import pytest

from specrun.bench.rows import summarise
from specrun.decoding.statistics import Statistics
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF
from specrun.views.measurements import bench_text


def sample(rate: float, passes: int = 10) -> list[Statistics]:
    return [Statistics(completion_tokens=60, seconds=60 / rate, passes=passes, first_token_seconds=0.5)]


def test_ratios_are_taken_within_repetitions() -> None:
    # The machine became twice as slow in the second repetition, and the ratio stays.
    plain = [sample(10), sample(5), sample(10)]
    row = summarise("tree", "tree of 16", "code", [sample(20), sample(10), sample(21)], plain, 19.0, 2**20, OFF.plan())
    assert row.ratio == pytest.approx(2.0)
    assert row.tokens_per_second == pytest.approx(20)
    assert (row.tokens_per_second_min, row.tokens_per_second_max) == (pytest.approx(10), pytest.approx(21))
    assert row.tokens_per_pass == pytest.approx(6)
    assert row.repetitions == 3


def test_every_format_has_every_row() -> None:
    rows = [summarise(m, m, "code", [sample(10)], [sample(10)], None, 0, OFF.plan()) for m in ("off", "tree")]
    assert [row["method"] for row in json.loads(bench_text(rows, "json"))] == ["off", "tree"]
    assert bench_text(rows, "md").count("\n") == 4


def test_accepted_lengths_are_added_up_over_repetitions() -> None:
    repetitions = [
        [Statistics(completion_tokens=n, seconds=1.0, passes=3, accepted=accepted)]
        for n, accepted in ((6, [1, 1, 1]), (7, [1, 0, 2]))
    ]
    row = summarise("tree", "tree", "code", repetitions, repetitions, None, 0, SPECEXEC.plan(16, 8))
    assert row.accepted_lengths == [2, 1, 3]
    assert (row.budget, row.depth) == (16, 8)


def test_the_prompts_of_a_repetition_are_added_up() -> None:
    answers = [
        Statistics(completion_tokens=4, seconds=1.0, passes=2, first_token_seconds=0.2, offered=[2], matched=[1]),
        Statistics(completion_tokens=8, seconds=2.0, passes=2, first_token_seconds=0.4, offered=[2, 2], matched=[2, 1]),
    ]
    row = summarise("tree", "tree", "code", [answers], [answers], None, 0, SPECEXEC.plan(16, 8))
    assert (row.tokens, row.tokens_per_second, row.tokens_per_pass) == (12, 4.0, 3.0)
    assert row.first_token_seconds == pytest.approx(0.3)
    assert row.acceptance_by_depth == [0.75, 0.5]
