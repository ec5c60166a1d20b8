"""Option values that cannot be, and the environment twins of options."""

from __future__ import annotations

from pathlib import Path

import pytest

from specrun.llama import library
from tests.conftest import SCRIPT_TEXT, SpecrunHere


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--max-tokens", "0"),
        ("--max-tokens", "-5"),
        ("--temp", "nan"),
        ("--temp", "-1"),
        ("--temp", "inf"),
        ("--top-k", "-1"),
        ("--top-p", "0"),
        ("--top-p", "1.5"),
        ("--min-p", "2"),
        ("--repeat-penalty", "0"),
        ("--presence-penalty", "nan"),
        ("--frequency-penalty", "inf"),
        ("--repeat-last-n", "-1"),
        ("--seed", "-7"),
        ("--seed", "99999999999999999999"),
        ("--budget", "0"),
        ("--budget", "100000"),
        ("--depth", "-1"),
        ("--ctx-size", "0"),
        ("--ctx-size", "99999999999"),
        ("--threads", "0"),
        ("--gpu-layers", "-2"),
        ("--gpu-layers", "99999999999"),
        ("--gpu-layers-draft", "-2"),
    ],
)
def test_a_value_out_of_range_is_named_in_one_line(here: SpecrunHere, script: Path, option: str, value: str) -> None:
    here("generate", "x", "-m", script, "-md", script, option, value).assert_fails(2, option, "must be")


def test_json_and_jsonl_exclude_each_other(here: SpecrunHere) -> None:
    here("generate", "x", "--json", "--jsonl").assert_fails(2, "--json")


def test_a_draft_alone_is_refused(here: SpecrunHere, script: Path) -> None:
    here("generate", "x", "--draft", script).assert_fails(2, "--target")


def test_minus_one_means_no_limit(here: SpecrunHere, script: Path) -> None:
    assert here("generate", "x", "-m", script, "-n", "-1").stdout == f"{SCRIPT_TEXT}\n"


def test_gpu_layers_without_a_gpu_are_ignored_with_a_notice(here: SpecrunHere, script: Path) -> None:
    if library.has_gpu():
        pytest.skip("this llama.cpp has a GPU backend")
    result = here("generate", "x", "-m", script, "--speculate", "off", "-ngl", "5")
    assert (result.code, result.stdout) == (0, f"{SCRIPT_TEXT}\n")
    assert "without a GPU backend" in result.stderr


def test_target_and_draft_can_come_from_the_environment(here: SpecrunHere, script: Path) -> None:
    result = here("generate", "x", SPECRUN_TARGET=str(script), SPECRUN_DRAFT=str(script))
    assert (result.code, result.stdout, result.stderr) == (0, f"{SCRIPT_TEXT}\n", "")


def test_an_option_is_stronger_than_the_environment(here: SpecrunHere, script: Path) -> None:
    result = here("generate", "x", "-m", script, SPECRUN_TARGET="/nowhere.gguf")
    assert (result.code, result.stdout) == (0, f"{SCRIPT_TEXT}\n")


def test_every_way_to_speculate_writes_the_same(here: SpecrunHere, random_model: Path) -> None:
    arguments = ["generate", "x", "-m", random_model, "-md", random_model, "-n", "12"]
    texts = {here(*arguments, "--speculate", method).stdout for method in ("auto", "off", "chain", "tree")}
    assert len(texts) == 1
    assert texts != {""}
