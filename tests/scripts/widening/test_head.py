"""A head for a wider model drafts what it drafts for the small one."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.demo_pair import drafting
from scripts.widening.head import widen
from specrun.catalog import embedded
from specrun.catalog.gguf_file import GgufFile
from specrun.errors import UsageError
from specrun.making.widening import WiderModel
from tests.eagle_heads import agreeing_pair, random_eagle3
from tests.scripts.make_head.orders import random_head

PROMPTS = [list(range(40, 60)), list(range(900, 920))]
ADDED = 32  # tokens that only the wider model has


@pytest.mark.long
def test_it_is_right_as_often_at_every_level(tmp_path: Path) -> None:
    target, head = agreeing_pair(tmp_path)
    n_vocab = GgufFile.read(target).n_vocab
    wide, wide_head = tmp_path / "wide.gguf", tmp_path / "wide-head.gguf"
    WiderModel(target, {"embd": 256, "layers": 6, "vocab": n_vocab + ADDED}, "q8_0").write(wide, lambda _: None)
    widen(head, target, wide, wide_head)
    shares = []
    for pair in ((target, head), (wide, wide_head)):
        with drafting.opened(*pair, 1) as engine:
            texts = drafting.written(engine, PROMPTS, 24)
            shares.append((texts, drafting.right_by_level(engine, texts, 20, 4)))
            assert engine.draft.n_vocab == GgufFile.read(pair[0]).n_vocab
    assert shares[0] == shares[1]
    assert shares[0][1][0] > 0.5


@pytest.mark.long
def test_a_head_that_was_made_here_fits_the_wider_model(tmp_path: Path) -> None:
    head, wide, wide_head = random_head(tmp_path / "head.gguf"), tmp_path / "wide.gguf", tmp_path / "wide-head.gguf"
    WiderModel(embedded.TARGET, {"embd": 512, "layers": 10}, "q8_0").write(wide, lambda _: None)
    widen(head, embedded.TARGET, wide, wide_head)
    drafted = []
    for pair in ((embedded.TARGET, head), (wide, wide_head)):
        with drafting.opened(*pair, 1) as engine:
            engine.read_for_draft(PROMPTS[0])
            drafted.append(engine.draft.start(PROMPTS[0]).argsort()[-5:].tolist())
    assert drafted[0] == drafted[1]


@pytest.mark.long
def test_a_head_of_another_target_is_refused(tmp_path: Path) -> None:
    target, _ = agreeing_pair(tmp_path)
    with pytest.raises(UsageError, match="is no EAGLE-3 head of a target like"):
        widen(random_eagle3(tmp_path / "other.gguf"), target, target, tmp_path / "out.gguf")
    with pytest.raises(UsageError, match="is narrower than"):
        widen(tmp_path / "other.gguf", embedded.TARGET, target, tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()
