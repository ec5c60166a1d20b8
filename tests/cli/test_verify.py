"""`specrun verify` as a user runs it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from specrun.catalog import embedded
from specrun.cli import comparing
from specrun.decoding import generation
from specrun.verifying.findings import Finding
from specrun.views import output
from tests.conftest import SpecrunHere
from tests.models import wide_target
from tests.verifying.test_verifier import wrong_after

QUICK = ["-n", "16", "-c", "256", "--raw"]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "def read(self):", "kind": "mine"}\n', encoding="utf-8")
    return file


@pytest.mark.slow
def test_json_objects_have_what_others_rely_on(here: SpecrunHere, prompts: Path) -> None:
    result = here("verify", "--json", "--speculate", "tree", "--prompts", prompts, *QUICK)
    assert (result.code, result.stderr) == (0, ""), result
    objects = json.loads(result.stdout)
    assert [(one["prompt"], one["temp"], one["identical"]) for one in objects] == [
        ("def read(self):", 0.0, True),
        ("def read(self):", 0.8, True),
    ]
    for one in objects:
        assert one["first_divergence"] is one["logit_gap"] is None
        assert one["drafted_passes"] > 0


@pytest.mark.slow
def test_auto_is_compared_beside_a_plan_that_always_drafts(here: SpecrunHere, prompts: Path) -> None:
    result = here("verify", "--prompts", prompts, "--temp", "0", "--no-learn", *QUICK)
    assert result.code == 0, result
    head, *auto, tree, answer = result.stdout.splitlines()
    assert head.split()[:2] == ["kind", "T"]
    assert [row.split()[:3] for row in auto] in ([], [["mine", "0", "auto"]])  # on some machines it drafts in no pass
    assert ("In 1 more, which the table leaves out" in answer) == (not auto)
    assert "tree of 16 nodes" in tree
    assert "identical" in tree
    assert answer.startswith("Does it change the answers? No: ")
    assert "\x1b" not in result.stdout + result.stderr


def test_a_text_in_which_no_pass_drafted_has_no_row(capsys: pytest.CaptureFixture[str]) -> None:
    plain = Finding("code", "x", 0.0, 0, "auto", n_tokens=60, n_passes=60)
    tree = replace(plain, plan="tree of 16 nodes", n_passes=20, n_drafted=19)
    output.print_table(comparing.report([plain, tree]))
    head, row = capsys.readouterr().out.splitlines()
    assert (head.split()[0], "tree of 16 nodes" in row) == ("kind", True)
    output.print_table(comparing.report([plain]))
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_off_a_terminal_lines_say_how_far_it_is(
    here: SpecrunHere, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "_SECONDS_BEFORE_A_LINE", 0.02)
    result = here("verify", "--json", "--prompts", prompts, "--temp", "0", "--no-learn", *QUICK)
    assert result.code == 0, result
    assert "mine, prompt 1 of 1, T=0: writing" in result.stderr
    assert len(json.loads(result.stdout)) == 2


def test_without_a_draft_the_text_itself_is_drafted_from(here: SpecrunHere, prompts: Path) -> None:
    result = here("verify", "--json", "--prompts", prompts, "--temp", "0", "--draft", "none", *QUICK)
    assert result.code == 0, result
    assert [one["identical"] for one in json.loads(result.stdout)] == [True, True]


@pytest.mark.slow
def test_a_wrong_token_ends_in_a_code_of_its_own(
    here: SpecrunHere, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation, "accept", wrong_after(1, rank=5))
    result = here("verify", "--speculate", "tree", "--temp", "0", "--prompts", prompts, *QUICK)
    assert result.code == 11, result
    assert "different" in result.stdout
    assert "plainly" in result.stdout
    assert "Does it change the answers? Yes: " in result.stdout
    assert result.stderr.startswith("specrun: a text with speculation is wrong from token ")
    assert result.stderr.count("\n") == 1


@pytest.mark.slow
def test_exact_is_identical_everywhere(here: SpecrunHere, prompts: Path, made: Path) -> None:
    pair = ["--target", wide_target(made, "q4_k_m"), "--draft", embedded.DRAFT]
    result = here("verify", "--json", "--exact", "--speculate", "tree", "--prompts", prompts, *pair, *QUICK)
    assert result.code == 0, result
    assert [one["identical"] for one in json.loads(result.stdout)] == [True, True]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--temp", "warm"], 2),
        (["--temp", "0,-1"], 2),
        (["--temp", "nan"], 2),
        (["-n", "0"], 2),
        (["--samples", "3"], 2),
        (["--speculate", "off"], 2),
        (["--prompts", "nothing.jsonl"], 5),
    ],
)
def test_bad_input_is_one_line(here: SpecrunHere, arguments: list[str], code: int) -> None:
    here("verify", *arguments).assert_fails(code)
