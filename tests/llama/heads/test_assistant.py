"""Gemma 4's assistant: drafts depend on the target's cache and on states, and never change what the target holds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.heads import Head, check_head, check_no_head, head_in
from specrun.catalog.info import facts, lines
from specrun.catalog.layer_states import kv_bytes_per_token
from specrun.catalog.resolve import Model as NamedModel
from specrun.decoding.engine import Engine
from specrun.errors import ModelFileError, PairError
from specrun.llama import AssistantDraft
from specrun.llama_settings import LlamaSettings
from specrun.loading.model import Model
from specrun.loading.run_options import RunOptions
from specrun.speculation.drafter import DraftNode
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.tree import ROOT, TokenTree
from tests.engines import engine
from tests.gemma4 import random_assistant, random_gemma4
from tests.models import random_llama

TEXT = list(range(40, 80))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("gemma4")
    target = random_gemma4(folder / "target.gguf")
    return target, random_assistant(folder / "assistant.gguf", target)


@pytest.fixture
def pair(files: tuple[Path, Path]) -> Iterator[tuple[Engine, AssistantDraft]]:
    with engine(*files, SPECEXEC.plan(16, 4)) as e:
        assert isinstance(e.draft, AssistantDraft)
        yield e, e.draft


@pytest.mark.slow
def test_nodes_know_those_above_them_and_the_cached_text(pair: tuple[Engine, AssistantDraft]) -> None:
    e, draft = pair
    e.target.set_prompt(TEXT)
    assert draft.n_unread(TEXT) == 1
    root = draft.start(TEXT).copy()
    first = draft.expand([DraftNode(1, ROOT, 11), DraftNode(2, ROOT, 12), DraftNode(3, ROOT, 11)]).copy()
    assert (first[0] == first[2]).all()
    assert not np.allclose(first[0], first[1])
    below = draft.expand([DraftNode(4, 1, 30), DraftNode(5, 2, 30), DraftNode(6, 3, 30)])
    assert (below[0] == below[2]).all()
    assert not np.allclose(below[0], below[1]), "states come from the parents"
    assert list(draft.expandable([ROOT, 4, 99], 8)) == [0, 1]
    # Another beginning, outside the window of one layer, is in the cache of the other. The text's end is the same.
    other = [90, *TEXT[1:]]
    e.target.set_prompt(other)
    assert not np.allclose(draft.start(other), root)


def test_the_target_keeps_its_cells(pair: tuple[Engine, AssistantDraft]) -> None:
    e, draft = pair
    e.target.set_prompt(TEXT)
    plain = e.target.score(TokenTree.root_only(TEXT[-1]))[0].copy()
    e.target.drop_tree()
    draft.start(TEXT)
    draft.expand([DraftNode(i, ROOT, i) for i in range(1, 9)])
    draft.reset()
    assert e.target.n_cached == len(TEXT) - 1 == e.target.context.sequence_end(0)
    assert (e.target.score(TokenTree.root_only(TEXT[-1]))[0] == plain).all()


def test_rows_along_a_text_are_those_behind_each_token(pair: tuple[Engine, AssistantDraft]) -> None:
    e, draft = pair
    e.read_for_draft(TEXT)
    rows = [row.copy() for row in draft.rows_along(TEXT, 0)]
    assert len(rows) == len(TEXT)
    assert (rows[0] == 0).all(), "nothing is cached before the first token"
    for n in (2, 17, len(TEXT)):
        e.reset()
        e.target.set_prompt(TEXT[:n])
        np.testing.assert_allclose(rows[n - 1], draft.start(TEXT[:n]), atol=2e-2)
    assert draft.context.decode_seconds > 0


def test_passes_fit_into_the_cells_that_the_target_has_left(files: tuple[Path, Path]) -> None:
    with engine(*files, SPECEXEC.plan(4, 2), ctx_size=64) as e:
        assert isinstance(e.draft, AssistantDraft)
        n_ctx = e.target.context.config.n_ctx
        text = [40 + i % 50 for i in range(n_ctx - 2)]
        e.target.set_prompt(text)
        e.draft.start(text)
        assert list(e.draft.expandable([ROOT] * 9, 9)) == [0, 1, 2]
        e.draft.expand([DraftNode(i, ROOT, i) for i in (1, 2, 3)])


CACHES = [
    LlamaSettings(threads=1, flash_attn="off"),
    LlamaSettings(threads=1, flash_attn="on", type_k="q8_0", type_v="q8_0"),
]


@pytest.mark.parametrize("settings", CACHES, ids=["V transposed", "K and V rotated"])
def test_a_cache_is_read_as_it_was_written(files: tuple[Path, Path], settings: LlamaSettings) -> None:
    rows = []
    for target_settings in (LlamaSettings(threads=1), settings):
        # The draft's own settings, which say otherwise, do not count.
        draft_settings = LlamaSettings(threads=1, flash_attn="on")
        plans = (SPECEXEC.plan(16, 4),)
        options = RunOptions(*files, plans, ctx_size=256, settings=target_settings, draft_settings=draft_settings)
        with Model(options) as model:
            assert isinstance(model.engine.draft, AssistantDraft)
            model.engine.target.set_prompt(TEXT)
            rows.append(model.engine.draft.start(TEXT).copy())
    assert np.corrcoef(*rows)[0, 1] > 0.999


@pytest.mark.slow
def test_what_files_say(files: tuple[Path, Path], tmp_path: Path) -> None:
    target, file = (GgufFile.read(path) for path in files)
    head = head_in(file)
    assert head == Head("mtp", (), 64, reads_cache=True)
    check_head(target, file, head)
    assert kv_bytes_per_token(file) == (0, 0)
    shown = dict(lines(facts(NamedModel("assistant", file.path))))
    assert shown["drafts for"] == "targets 64 wide, by the states after their last layer and their KV cache"
    with pytest.raises(ModelFileError, match="is a Gemma 4 assistant, which writes nothing by itself"):
        check_no_head(file)
    llama = GgufFile.read(random_llama(tmp_path / "llama.gguf"))
    with pytest.raises(PairError, match="reads the cache of Gemma 4 models, and the target is llama"):
        check_head(llama, file, head)
    for key, value, reason in (
        (
            "attention.key_length",
            96,
            "its layer 1 reads 1 heads of 96 numbers in the target's cache, which has 1 of 64",
        ),
        ("attention.head_count_kv", [2, 1], "its layer 0 reads 2 heads of 32 numbers .* which has 1 of 32"),
        ("embedding_length_out", 96, "reads states of 96 numbers, and the target's have 64"),
    ):
        changed = random_assistant(tmp_path / "o.gguf", files[0], metadata={f"gemma4-assistant.{key}": value})
        other = GgufFile.read(changed)
        found = head_in(other)
        assert found
        with pytest.raises(PairError, match=reason):
            check_head(target, other, found)
