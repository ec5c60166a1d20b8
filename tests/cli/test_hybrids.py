"""Commands on models with recurrent layers: they are measured and tuned as any others, over chains."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specrun.tuning.tuner import EFFORTS, Effort
from tests.conftest import SpecrunHere
from tests.hybrids import noisy, random_recurrent

PROMPTS = '{"prompt": "import os"}\n{"prompt": "class A:"}\n'


@pytest.fixture(scope="module", params=["qwen35", "mamba"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp(request.param)
    target = random_recurrent(folder / "target.gguf", request.param)
    return target, noisy(folder / "draft.gguf", target)


@pytest.mark.slow
def test_tune_and_what_follows_its_profile(
    here: SpecrunHere, pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(EFFORTS, "quick", Effort(seconds=3, rounds=1, n_texts=2, n_tokens=24))
    models = ["--target", pair[0], "--draft", pair[1]]
    text = ["generate", "import os", "--raw", "-n", "32", "--temp", "0.8", *models]
    result = here("tune", "--quick", "--json", *models)
    assert result.code == 0, result.stderr
    tuned = json.loads(result.stdout)
    assert {entry["method"] for plan in tuned["plans"] for entry in plan["expected"]} == {"off", "merged"}
    assert tuned["exact_sizes"] == {"least": 1}, "Q8_0 is the same bits in all passes"
    assert tuned["tables"]["draft"]
    plain = here(*text, "--speculate", "off")
    for more in ([], ["--speculate", "chain"], ["--speculate", "tree"], ["--draft", "none"]):
        assert here(*text, *more).stdout == plain.stdout, more


@pytest.mark.slow
def test_bench_leaves_trees_out(here: SpecrunHere, pair: tuple[Path, Path], tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(PROMPTS, encoding="utf-8")
    options = ["--raw", "--prompts", prompts, "--repeat", "1", "-n", "12", "-t", "1", "-o", "json"]
    methods = "chain,tree,draftless,sequoia,specinfer,auto"
    result = here("bench", "--target", pair[0], "--draft", pair[1], "--methods", methods, *options)
    assert result.code == 0, result.stderr
    rows = {row["method"]: row for row in json.loads(result.stdout)}
    assert list(rows) == ["off", "chain", "draftless", "sequoia", "specinfer", "auto"]
    assert "left out tree: " in result.stderr
    assert "checks one path" in result.stderr
    assert rows["chain"]["tokens_per_pass"] > 1


@pytest.mark.slow
def test_verify_finds_identical_texts(here: SpecrunHere, pair: tuple[Path, Path]) -> None:
    result = here("verify", "--target", pair[0], "--draft", pair[1], "-n", "24", "--speculate", "chain", "--json")
    assert result.code == 0, result.stderr
    assert json.loads(result.stdout)
