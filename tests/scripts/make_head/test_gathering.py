"""The target's texts and states, with the embedded target and the real llama.cpp."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from scripts.make_head import gathering
from scripts.make_head.gathering import Gatherer, mixed, shipped_prompts
from scripts.make_head.records import Records
from scripts.make_head.shape import shape_for
from specrun.catalog import embedded
from specrun.catalog.gguf_file import GgufFile
from specrun.errors import PromptError
from specrun.long_run import Run
from specrun.speculation.method import OFF
from specrun.speculation.tree import TokenTree
from tests.engines import engine
from tests.hybrids import random_qwen35
from tests.scripts.make_head.orders import PROMPTS

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "_WRITTEN", 24)
    monkeypatch.setattr(gathering, "_ROUNDS", 1)


def gathered(folder: Path, n: int) -> Records:
    kept = Records.read(folder)
    shape = shape_for(GgufFile.read(embedded.TARGET))
    with Gatherer(embedded.TARGET, shape, PROMPTS, True, Run()) as gatherer:
        for _ in range(n):
            assert gatherer.gather(kept, Run()) > 0
        assert gatherer.tokens_per_second > 0
    return kept


def test_records_are_what_the_target_computes(tmp_path: Path) -> None:
    kept = gathered(tmp_path, 1)
    assert len(kept.texts) == 16
    assert len({kept.column("token", [text]).tobytes() for text in kept.texts}) == 16, "each has a seed of its own"
    text = kept.texts[1]
    tokens = kept.column("token", [text]).tolist()
    with engine(embedded.TARGET, None, OFF.plan()) as e:
        e.target.set_prompt(tokens)
        logits = e.target.score(TokenTree.root_only(tokens[-1]))[0].copy()
    assert kept.column("likely", [text])[-1, 0] == logits.argmax()
    probabilities = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    assert kept.column("chance", [text])[-1, 0] == pytest.approx(probabilities.max(), rel=0.02)
    states = kept.column("state", [text]).astype(np.float32)
    assert (np.abs(states).max(axis=1) > 0).all()


def test_texts_go_on_where_they_were(tmp_path: Path) -> None:
    at_once = gathered(tmp_path / "at-once", 2)
    gathered(tmp_path / "twice", 1)
    twice = gathered(tmp_path / "twice", 1)
    np.testing.assert_array_equal(at_once.column("token", at_once.texts), twice.column("token", twice.texts))


def test_a_hybrid_target(tmp_path: Path) -> None:
    target = random_qwen35(tmp_path / "hybrid.gguf")
    kept = Records.read(tmp_path / "texts")
    with Gatherer(target, shape_for(GgufFile.read(target)), PROMPTS, True, Run()) as gatherer:
        gatherer.gather(kept, Run())
        gatherer.gather(kept, Run())
    assert len(kept.texts) >= 2
    assert kept.n_tokens > 2 * 24


def test_prompts_that_are_too_long_are_left_out() -> None:
    shape, notes = shape_for(GgufFile.read(embedded.TARGET)), []
    with Gatherer(embedded.TARGET, shape, [*PROMPTS, "x = 1\n" * 500], True, Run(note=notes.append)):
        pass
    assert notes == ["1 of 5 prompts are left out: they have more than 256 tokens"]
    with pytest.raises(PromptError, match="all prompts are empty or have more than 256 tokens"):
        Gatherer(embedded.TARGET, shape, ["x = 1\n" * 500], True, Run())


def test_shipped_prompts_are_many_and_mixed() -> None:
    prompts = shipped_prompts()
    assert len(set(prompts)) == len(prompts) > 2000
    assert mixed([], prompts) == prompts
    assert mixed(["a", "b"], ["1", "2", "3"]) == ["a", "1", "b", "2", "a", "3"]
