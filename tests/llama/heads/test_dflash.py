"""A block of a DFlash head as a tree, and its cache: the same drafts whichever way the head came to a text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from specrun.catalog import embedded
from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.heads import Head, article, block_of, check_head, head_in
from specrun.decoding.engine import Engine
from specrun.errors import ModelFileError
from specrun.llama import BlockDraft
from specrun.llama.context import Logits
from specrun.speculation.drafter import DraftNode
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.tree import ROOT, TokenTree
from tests.dflash_heads import FEW, dflash2_pair, random_dflash, random_dspark
from tests.engines import engine
from tests.hybrids import random_qwen35
from tests.models import Reader, edited
from tests.soak.failing import MOMENTS, Moment, OnPurposeError, failing

TEXT = list(range(40, 60))
SIZE = 6


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Engine, BlockDraft]]:
    file = random_dflash(tmp_path_factory.mktemp("heads") / "head.gguf", block_size=SIZE, n_draft_vocab=512)
    with engine(embedded.TARGET, file, SPECEXEC.plan(32, 8)) as e:
        assert isinstance(e.draft, BlockDraft)
        yield e, e.draft


def after(pair: tuple[Engine, BlockDraft], text: Sequence[int]) -> Logits:
    """float32[levels, n_vocab]: the block after a text that the target reads from its beginning."""
    e, draft = pair
    e.reset()
    e.target.set_prompt(list(text))
    return block(draft, text)


def block(draft: BlockDraft, text: Sequence[int]) -> Logits:
    rows = [draft.start(text).copy()]
    for depth in range(1, SIZE - 1):
        rows.append(draft.expand([DraftNode(depth, depth - 1, 7)])[0].copy())
    return np.stack(rows)


def assert_close(rows: Logits, expected: Logits) -> None:
    np.testing.assert_allclose(rows, expected, atol=2e-2)


def test_levels_are_rows_of_one_pass(pair: tuple[Engine, BlockDraft]) -> None:
    rows = after(pair, TEXT)
    assert rows.shape == (SIZE - 1, 2048)
    assert (np.isfinite(rows).sum(axis=1) == 512).all()
    assert all(not np.allclose(rows[0], row) for row in rows[1:])
    _, draft = pair
    n_passes = draft.context.n_passes
    draft.start(TEXT)
    assert list(draft.expandable([ROOT, ROOT, 1], 16)) == [0, 1]
    siblings = draft.expand([DraftNode(1, ROOT, 11), DraftNode(2, ROOT, 12)])
    assert (siblings[0] == siblings[1]).all()
    assert draft.context.n_passes == n_passes + 1
    for id_ in range(3, SIZE):
        draft.expand([DraftNode(id_, id_ - 1 if id_ > 3 else 1, 9)])
    assert list(draft.expandable([SIZE - 1, 1], 16)) == [1], "the block ends there"


def test_drafts_after_rounds_are_those_from_scratch(pair: tuple[Engine, BlockDraft]) -> None:
    e, draft = pair
    path = [11, 12]
    text = [*TEXT, *(token for _ in range(3) for token in (*path, 30))]
    expected = after(pair, text)
    after(pair, TEXT)
    for _ in range(3):
        draft.start(e.target.tokens)
        tree = TokenTree.chain([e.target.tokens[-1], *path, 99])
        e.target.score(tree)
        e.target.commit(tree, [0, 1, 2], 30)
    assert e.target.tokens == text
    assert_close(block(draft, text), expected)
    # Another text that shares a beginning, which the target keeps.
    other = [*TEXT[:7], 90, 91]
    expected = after(pair, other)
    after(pair, text)
    e.target.set_prompt(other)
    assert_close(block(draft, other), expected)


def test_rows_along_a_text_are_those_behind_each_token(pair: tuple[Engine, BlockDraft]) -> None:
    e, draft = pair
    e.read_for_draft(TEXT)
    rows = [row.copy() for row in draft.rows_along(TEXT, 3)]
    assert len(rows) == len(TEXT) - 3
    for n in (4, len(TEXT)):
        assert_close(rows[n - 4], after(pair, TEXT[:n])[0])


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS, ids=str)
def test_after_an_interruption_at_any_moment_the_next_text_is_right(
    pair: tuple[Engine, BlockDraft], moment: Moment
) -> None:
    e, draft = pair
    text = [*TEXT, 11, 12, 30]
    expected = after(pair, text)
    for context in (e.target.context, draft.context):
        for n_before in range(3):
            after(pair, TEXT)
            with failing(context, moment, n_before), suppress(OnPurposeError):
                e.target.set_prompt([*TEXT, 11])
                draft.start([*TEXT, 11])
                e.target.set_prompt(TEXT[:8])
                draft.start(TEXT[:8])
            e.target.set_prompt(text)
            assert_close(block(draft, text), expected)


def test_what_files_say(tmp_path: Path) -> None:
    plain = GgufFile.read(random_dflash(tmp_path / "dflash.gguf", block_size=8))
    head = head_in(plain)
    assert head == Head("dflash", (1, 7), 256)
    assert f"{article(head.kind)} {head.name}" == "a DFlash head"
    check_head(GgufFile.read(embedded.TARGET), plain, head)
    mask = plain.metadata.get("tokenizer.ggml.mask_token_id")
    assert block_of(plain) == (8, mask, 1, False)
    assert block_of(GgufFile.read(random_dspark(tmp_path / "dspark.gguf", block_size=7))) == (7, mask, 0, False)
    without = edited(tmp_path / "without.gguf", plain.path, {"tokenizer.ggml.mask_token_id": None})
    with pytest.raises(ModelFileError, match="names no mask token"):
        block_of(GgufFile.read(without))


def test_positions_in_all_dimensions_are_those_of_the_text(tmp_path: Path) -> None:
    # The converter gives all pairs of numbers of such a head to the first dimension, which turns them as ever.
    target, rows = random_qwen35(tmp_path / "target.gguf"), []
    for has_sections in (False, True):
        file = random_dflash(tmp_path / f"{has_sections}.gguf", target, block_size=SIZE, has_sections=has_sections)
        with engine(target, file, SPECEXEC.plan(32, 8)) as e:
            assert isinstance(e.draft, BlockDraft)
            assert e.draft.context.model.n_dimensions == (4 if has_sections else 1)
            rows.append(after((e, e.draft), TEXT))
    assert_close(rows[1], rows[0])


def test_a_selector_scores_each_token_behind_each_other(tmp_path: Path) -> None:
    target, head = dflash2_pair(tmp_path, block_size=SIZE)
    with engine(target, head, SPECEXEC.plan(32, 8)) as e:
        assert isinstance(e.draft, BlockDraft)
        e.target.set_prompt(TEXT)
        assert np.isfinite(e.draft.start(TEXT)).sum() == len(FEW)
        rows = e.draft.expand([DraftNode(i, ROOT, token) for i, token in enumerate(FEW, 1)])
        of_no_candidate = e.draft.expand([DraftNode(99, ROOT, 7)])[0][FEW]
    assert (np.isfinite(rows).sum(axis=1) == len(FEW)).all()
    book = {tensor.name: tensor.data for tensor in Reader(head).tensors}
    before, behind = (book[f"selector_{name}.weight"] for name in ("predecessor", "successor"))
    # The gate is one number for the whole level here, and so is what a row says of its candidates without the selector.
    expected = behind[FEW] @ (before[FEW[1:]] - before[FEW[0]]).T
    gained = (rows[1:, FEW] - rows[0, FEW]).T
    gate = (gained * expected).sum() / (expected**2).sum()
    assert gate > 0.5
    assert_close(gained, gate * expected)
    assert_close(of_no_candidate, rows[0, FEW] - gate * behind[FEW] @ before[FEW[0]])


def test_what_llama_cpp_cannot_compute_is_named(tmp_path: Path) -> None:
    target, head = dflash2_pair(tmp_path)
    wide = edited(tmp_path / "wide.gguf", head, {"dflash.selector_top_k": 8})
    with (
        pytest.raises(ModelFileError, match="hidden size is too small for the selector"),
        engine(target, wide, SPECEXEC.plan(32, 8)),
    ):
        raise AssertionError("it was loaded")


@pytest.mark.slow
def test_a_block_is_no_longer_than_the_plans_are_deep(tmp_path: Path) -> None:
    rows = []
    for name, make, first in (("dflash", random_dflash, 1), ("dspark", random_dspark, 0)):
        file = make(tmp_path / f"{name}.gguf", block_size=7)
        # With attention to earlier rows alone, a shorter block has the same rows.
        file = edited(tmp_path / f"causal-{name}.gguf", file, {"dflash.attention.causal": True})
        for depth, size in ((3, 3 + first), (16, 7)):
            with engine(embedded.TARGET, file, SPECEXEC.plan(32, depth)) as e:
                assert isinstance(e.draft, BlockDraft)
                assert e.draft.block.size == size
                e.target.set_prompt(TEXT)
                rows.append(e.draft.start(TEXT).copy())
        assert_close(rows[-1], rows[-2])
