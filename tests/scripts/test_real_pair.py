"""The pair that writes English, on machines where its source lies in the cache. No test fetches it."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from specrun.locations import cache_dir
from tests.conftest import Specrun

SOURCE = cache_dir() / "real-pair" / "SmolLM2-135M-Instruct.Q4_1.gguf"  # found before a test sets another cache
SCRIPTS = Path(__file__).parents[2] / "scripts"
QUESTIONS = ("What is the capital of France? Answer in one sentence.", "Write a Python function that adds two numbers.")

pytestmark = [pytest.mark.long, pytest.mark.skipif(not SOURCE.exists(), reason="scripts/real_pair.py was not run here")]


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("real-pair") / "draft.gguf"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        real_pair = importlib.import_module("real_pair")
        patch.setattr(real_pair, "source", lambda: SOURCE)
        real_pair.write_draft(path, *real_pair.DRAFTS[70])
    return path


def test_it_answers_in_english_whichever_plan_drafts(draft: Path, specrun: Specrun) -> None:
    ask = ("generate", "-m", SOURCE, "-t", "1", "--temp", "0", "-n", "24", "--exact", QUESTIONS[0])
    alone = specrun(*ask, "--draft", "none", "--speculate", "off")
    assert "Paris" in alone.stdout, alone
    for plan in ("chain", "tree", "auto"):
        drafted = specrun(*ask, "--draft", draft, "--speculate", plan)
        assert (drafted.code, drafted.stdout) == (0, alone.stdout), drafted


def test_no_difference_is_left_unexplained(draft: Path, specrun: Specrun, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": question}) + "\n" for question in QUESTIONS))
    verified = specrun("verify", "-m", SOURCE, "-md", draft, "-t", "1", "-n", "24", "--prompts", prompts, "--json")
    assert verified.code == 0, verified
    assert {text["outcome"] for text in json.loads(verified.stdout)} <= {"identical", "near-tie"}
