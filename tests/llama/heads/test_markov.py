"""The Markov part of a DSpark head: each node of a tree gets the logits that follow its own token."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from specrun.catalog import embedded
from specrun.catalog.gguf_file import GgufFile
from specrun.llama import BlockDraft
from specrun.llama.context import Logits
from specrun.llama.heads import dflash
from specrun.llama.heads.dflash import matrix_in, whole_numbers_in
from specrun.speculation.drafter import DraftNode
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.tree import ROOT
from tests.dflash_heads import random_dflash, random_dspark
from tests.engines import engine

TEXT = list(range(40, 60))
F32, Q8 = gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.Q8_0


def tree(file: Path) -> tuple[Logits, Logits, Logits]:
    """Of a head: the logits after the root, after three children of it, and after a child of each of those."""
    with engine(embedded.TARGET, file, SPECEXEC.plan(32, 8)) as e:
        draft = e.draft
        assert isinstance(draft, BlockDraft)
        e.target.set_prompt(TEXT)
        first = draft.start(TEXT).copy()
        tokens = [int(first.argmax()), 11, 12]
        second = draft.expand([DraftNode(1 + i, ROOT, token) for i, token in enumerate(tokens)]).copy()
        third = draft.expand([DraftNode(11 + i, 1 + i, 13 + i) for i in range(3)]).copy()
        assert draft.context.n_passes == 1
        return first, second, third


@pytest.mark.slow
@pytest.mark.parametrize(("n_draft_vocab", "weight_type"), [(None, F32), (None, Q8), (700, F32), (1500, Q8)])
def test_every_node_has_the_logits_behind_its_own_token(
    tmp_path: Path, n_draft_vocab: int | None, weight_type: gguf.GGMLQuantizationType
) -> None:
    options = {"n_draft_vocab": n_draft_vocab, "weight_type": weight_type}
    file = random_dspark(tmp_path / "says.gguf", **options)
    first, second, third = tree(file)
    silent = tree(random_dspark(tmp_path / "silent.gguf", suggests=False, **options))
    header = GgufFile.read(file)
    before, after = (matrix_in(header, name) for name in ("markov_w1.weight", "markov_w2.weight"))
    assert before
    assert after
    drafted = whole_numbers_in(header, "d2t")
    allowed = np.arange(2048) if drafted is None else np.asarray(drafted)
    rows = [first, *second, *third]
    base = [silent[0], *silent[1], *silent[2]]
    tokens = [TEXT[-1], int(first.argmax()), 11, 12, 13, 14, 15]
    for row, alone, token in zip(rows, base, tokens, strict=True):
        expected = alone[allowed] + after(slice(None)) @ before([token])[0]
        np.testing.assert_allclose(row[allowed], expected, atol=0.05)
        assert np.isfinite(row).sum() == len(allowed)
    assert len({int(row.argmax()) for row in second}) == 3, "children of different tokens have different candidates"


@pytest.mark.slow
@pytest.mark.parametrize("n_draft_vocab", [None, 1500])
def test_of_many_tokens_only_the_likeliest_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_draft_vocab: int | None
) -> None:
    file = random_dspark(tmp_path / "head.gguf", n_draft_vocab=n_draft_vocab)
    whole = tree(file)[1]
    monkeypatch.setattr(dflash, "_ALL", 1000)
    monkeypatch.setattr(dflash, "_LIKELIEST", 1000)
    _, rows, _ = tree(file)
    followed = np.sort(rows[0])[-1000]
    for row, of_all in zip(rows[1:], whole[1:], strict=True):
        likeliest = rows[0] >= followed
        assert (row[likeliest] == of_all[likeliest]).all()
        assert (row[~likeliest] == rows[0][~likeliest]).all()


def test_other_heads_have_none(tmp_path: Path) -> None:
    plain = GgufFile.read(random_dflash(tmp_path / "dflash.gguf", n_draft_vocab=512))
    assert dflash.markov_part(plain) is None
    drafted = whole_numbers_in(plain, "d2t")
    assert drafted is not None
    assert len(drafted) == 512
