"""`specrun methods`, and methods by name on the other commands."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from specrun.catalog import embedded
from tests.conftest import Specrun, SpecrunHere

WRITE = ["generate", "def f(x):\n", "-n", "24", "--temp", "0.8", "--json"]


def test_methods_are_listed_with_paper_kind_needs_and_losslessness(here: SpecrunHere) -> None:
    result = here("methods", "--json")
    assert result.code == 0
    methods = {entry["name"]: entry for entry in json.loads(result.stdout)}
    assert all({"name", "paper", "kind", "needs", "lossless"} <= set(entry) for entry in methods.values())
    assert [name for name, entry in methods.items() if not entry["lossless"]] == ["typical"]
    assert methods["sequoia"]["needs"] == ["draft model", "acceptance vector"]
    table = here("methods").stdout
    assert all(name in table for name in methods)


@pytest.mark.slow
def test_what_samples_and_matches_writes_what_the_target_would(here: SpecrunHere) -> None:
    off = json.loads(here(*WRITE, "--method", "off").stdout)
    for name in ("chain", "specexec", "tree", "opt-tree", "cape", "sequoia-match", "eagle3"):
        result = here(*WRITE, "--method", name, "--budget", "12", "--depth", "4")
        written = json.loads(result.stdout)
        assert written["token_ids"] == off["token_ids"], name
        assert written["passes"] < off["passes"], name


@pytest.mark.slow
def test_the_embedded_target_has_drafts_by_name(here: SpecrunHere) -> None:
    off = json.loads(here(*WRITE, "--draft", "none").stdout)
    for name in ("draft", "eagle3"):
        written = json.loads(here(*WRITE, "--draft", name, "--speculate", "tree").stdout)
        assert written["token_ids"] == off["token_ids"], name
        assert written["passes"] < off["passes"], name
    for draft in ([], ["--draft", "eagle3"]):
        here(*WRITE, *draft, "--method", "dflash").assert_fails(4, "--method dflash needs a DFlash head")
    here(*WRITE, "--draft", "other").assert_fails(2, "--draft needs a target", "--target")
    here(*WRITE, "-m", "embedded", "--draft", "none.gguf").assert_fails(3, "none.gguf: no such file")
    written = json.loads(here(*WRITE, "-m", "embedded", "--draft", embedded.HEAD, "--speculate", "tree").stdout)
    assert written["token_ids"] == off["token_ids"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sequoia", "block-verification", "spectr", "multi-candidate"])
def test_what_draws_writes_a_text_of_its_own_that_a_seed_gives_again(here: SpecrunHere, name: str) -> None:
    texts = [json.loads(here(*WRITE, "--method", name, "--seed", seed).stdout) for seed in ("1", "1", "2")]
    assert texts[0]["token_ids"] == texts[1]["token_ids"] != texts[2]["token_ids"]
    assert texts[0]["passes"] < len(texts[0]["token_ids"])


def test_a_lossy_method_says_so(here: SpecrunHere) -> None:
    result = here(*WRITE, "--method", "typical", "--stats")
    assert "typical (lossy)" in result.stderr
    assert "not the target's" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--method", "magic"], "specrun methods"),
        (["--method", "chain", "--speculate", "tree"], "exclude each other"),
        (["--method", "adaptive"], "specrun tune"),
        (["--method", "sequoia", "--depth", "5000"], "--depth"),
        (["--method", "rsd", "--grammar", "x.gbnf"], "--grammar goes with methods that sample and match"),
    ],
)
def test_what_cannot_be_is_said_in_a_line(here: SpecrunHere, arguments: list[str], part: str) -> None:
    here(*WRITE, *arguments).assert_fails(2, part)


@pytest.mark.slow
def test_without_a_draft_the_text_itself_is_drafted_from(here: SpecrunHere) -> None:
    repeating = ["generate", "a = 1\nb = 2\n" * 30, "--raw", "-n", "60", "--temp", "0", "--json"]
    off = json.loads(here(*repeating, "--method", "off").stdout)
    for options in (["--method", "draftless"], ["--method", "suffix-automaton"]):
        written = json.loads(here(*repeating, "--draft", "none", *options).stdout)
        assert written["token_ids"] == off["token_ids"]
        assert written["passes"] < off["passes"] / 2, options
    result = here(*repeating, "--draft", "none", "--stats")
    assert json.loads(result.stdout)["token_ids"] == off["token_ids"]
    # Plain passes of so small a model may be as fast as the longest copies.
    assert re.search("drafts from the text itself|nothing else pays on this text", result.stderr), result.stderr
    assert "learned while writing" in result.stderr


def test_a_benchmark_of_all_methods(specrun: Specrun, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "import os"}\n', encoding="utf-8")
    options = ["--prompts", prompts, "--repeat", "1", "-n", "6", "-t", "1", "--temp", "0.8", "-o", "json"]
    result = specrun("bench", "--methods", "all", *options)
    assert result.code == 0, result.stderr
    rows = {row["method"]: row for row in json.loads(result.stdout)}
    names = {entry["name"] for entry in json.loads(specrun("methods", "--json").stdout)}
    left_out = {"adaptive", "merged", "eagle3", "mtp", "dflash"}
    assert set(rows) == (names | {"auto"}) - left_out
    for name in left_out:
        assert f"left out {name}" in result.stderr
    assert "lossy" in rows["typical"]["plan"]
    assert rows["sequoia"]["tokens_per_pass"] >= 1
