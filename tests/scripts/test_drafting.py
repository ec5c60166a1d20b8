"""How often a draft is right, level by level, as `train_demo_head.py` reports it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.eagle_heads import random_eagle3
from tests.models import random_llama, scripted_llama

SCRIPTS = Path(__file__).parents[2] / "scripts"
PROMPTS = [list(range(40, 60)), list(range(900, 920))]
LEVELS = 4


@pytest.fixture(scope="module")
def drafting() -> Iterator[ModuleType]:
    sys.path.insert(0, str(SCRIPTS))
    yield importlib.import_module("demo_pair.drafting")
    sys.path.remove(str(SCRIPTS))


def right(drafting: ModuleType, target: Path, draft: Path) -> list[float]:
    with drafting.opened(target, draft, 1) as engine:
        texts = drafting.written(engine, PROMPTS, 24)
        assert [text[:20] for text in texts] == PROMPTS
        assert all(len(text) == 44 for text in texts)
        shares: list[float] = drafting.right_by_level(engine, texts, 20, LEVELS)
        return shares


@pytest.mark.long
def test_a_draft_that_computes_what_the_target_does_is_always_right(drafting: ModuleType, tmp_path: Path) -> None:
    pieces = [b" one", b" two", b" three", b" four", b" five"]
    target = scripted_llama(tmp_path / "target.gguf", pieces, repeat=True, n_layer=2)
    draft = scripted_llama(tmp_path / "draft.gguf", pieces, repeat=True)
    assert right(drafting, target, draft) == [1.0] * LEVELS


def test_a_head_with_random_weights_is_never_right(drafting: ModuleType, tmp_path: Path) -> None:
    target = random_llama(tmp_path / "target.gguf", n_layer=4)
    assert right(drafting, target, random_eagle3(tmp_path / "head.gguf", target)) == [0.0] * LEVELS
