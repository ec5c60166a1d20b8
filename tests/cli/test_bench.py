"""`specrun bench` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Specrun, SpecrunHere

QUICK = ["--repeat", "1", "-n", "6", "-t", "1"]


def prompts_file(folder: Path) -> Path:
    file = folder / "prompts.jsonl"
    file.write_text('{"prompt": "import os"}\n{"prompt": "class A:"}\n', encoding="utf-8")
    return file


def test_json_rows_have_what_others_rely_on(specrun: Specrun, tmp_path: Path) -> None:
    result = specrun("bench", "--prompts", prompts_file(tmp_path), "-o", "json", *QUICK)
    assert result.code == 0, result.stderr
    rows = json.loads(result.stdout)
    assert [row["method"] for row in rows] == ["off", "chain", "tree", "auto"]
    assert rows[0]["ratio"] == 1
    assert len({row["tokens"] for row in rows}) == 1
    for row in rows:
        assert {"kind", "tokens_per_second", "ratio", "tokens_per_pass", "predicted_tokens_per_second"} <= set(row)
        assert row["tokens_per_second"] > 0
    assert all(row["tokens_per_pass"] >= 1 for row in rows)


@pytest.mark.slow
def test_without_a_draft_rows_that_need_one_are_left_out(here: SpecrunHere, tmp_path: Path) -> None:
    options = ["--draft", "none", "--methods", "chain,draftless,auto", "--prompts", prompts_file(tmp_path)]
    result = here("bench", *options, "-o", "json", *QUICK)
    assert result.code == 0, result.stderr
    assert [row["method"] for row in json.loads(result.stdout)] == ["off", "draftless", "auto"]
    assert "left out chain: it needs a draft model" in result.stderr


@pytest.mark.slow
def test_prompts_that_do_not_fit_are_left_out_before_anything_is_measured(here: SpecrunHere, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    long = json.dumps({"prompt": "x = 1\n" * 200})
    arguments = ["bench", "--prompts", file, "-c", "128", "--methods", "chain", *QUICK]
    file.write_text(f'{{"prompt": "import os"}}\n{long}\n', encoding="utf-8")
    result = here(*arguments)
    assert result.code == 0, result.stderr
    assert "left out 1 of 2 prompts" in result.stderr
    file.write_text(long, encoding="utf-8")
    here(*arguments).assert_fails(5, "all prompts", "128", "--ctx-size")


@pytest.mark.slow
def test_a_sweep_covers_the_grid(here: SpecrunHere, tmp_path: Path) -> None:
    result = here("bench", "--sweep", "--prompts", prompts_file(tmp_path), "-o", "json", *QUICK)
    assert result.code == 0, result.stderr
    methods = [row["method"] for row in json.loads(result.stdout)]
    assert methods[0] == "off"
    assert "chain 4" in methods
    assert "tree 32 x 8" in methods


@pytest.mark.slow
def test_a_grid_of_ones_own_for_any_method(here: SpecrunHere, tmp_path: Path) -> None:
    result = here(
        "bench", "--prompts", prompts_file(tmp_path), "--methods", "chain,tree,sequoia,sequoia-match",
        "--budgets", "4,16", "--depths", "2,8", "-o", "json", *QUICK,
    )  # fmt: skip
    assert result.code == 0, result.stderr
    rows = {row["method"]: row for row in json.loads(result.stdout)}
    trees = ["4 x 2", "4 x 3", "16 x 2", "16 x 8"]
    names = [f"{name} {size}" for name in ("tree", "sequoia", "sequoia-match") for size in trees]
    assert list(rows) == ["off", "chain 2", "chain 8", *names]
    assert (rows["tree 4 x 3"]["budget"], rows["tree 4 x 3"]["depth"]) == (4, 3)
    for name in ("chain 8", "tree 16 x 8"):
        shares = rows[name]["acceptance_by_depth"]
        assert 1 <= len(shares) <= 8
        assert all(0 <= share <= 1 for share in shares)
    assert rows["off"]["acceptance_by_depth"] == []
    assert len({row["tokens"] for row in rows.values()}) == 1


@pytest.mark.slow
def test_trees_of_2048_nodes(here: SpecrunHere, tmp_path: Path) -> None:
    options = ["--methods", "tree", "--budgets", "2048", "--depths", "12", "-o", "json", "-c", "256"]
    result = here("bench", "--prompts", prompts_file(tmp_path), *options, *QUICK)
    assert result.code == 0, result.stderr
    off, tree = json.loads(result.stdout)
    assert (tree["method"], tree["budget"]) == ("tree 2048 x 12", 2048)
    assert tree["tokens_per_pass"] > off["tokens_per_pass"] == 1


@pytest.mark.slow
def test_filters_change_the_text_and_are_checked(here: SpecrunHere, tmp_path: Path) -> None:
    given = ["bench", "--prompts", prompts_file(tmp_path), "--methods", "chain", "--temp", "2", "-o", "json", *QUICK]
    open_filters = ["--top-k", "0", "--top-p", "1", "--min-p", "0"]
    depths = ["--depths", "4"]
    narrow = here(*given, *depths, "--top-k", "1")
    greedy = here(*given, *depths, "--temp", "0")
    wide = here(*given, *depths, *open_filters)
    chains = [json.loads(result.stdout)[1]["accepted_lengths"] for result in (narrow, greedy, wide)]
    assert chains[0] == chains[1] != chains[2]
    here(*given, "--top-p", "0").assert_fails(2, "--top-p must be above 0")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["bench", "--kinds", "poems"], 2),
        (["bench", "--methods", "magic"], 2),
        (["bench", "--repeat", "0"], 2),
        (["bench", "--budgets", "1,4"], 2),
        (["bench", "--budgets", "4,4096"], 2),
        (["bench", "--depths", "four"], 2),
        (["bench", "--prompts", "nothing.jsonl"], 5),
        (["bench", "-o", "csv"], 2),
    ],
)
def test_bad_input_is_one_line(here: SpecrunHere, arguments: list[str], code: int) -> None:
    result = here(*arguments)
    assert result.code == code
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr
