"""Trees score as their paths do, and commits leave the cache as plain decoding would."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pytest

from specrun.catalog import embedded
from specrun.errors import ContextFullError
from specrun.llama import LlamaModel, TargetContext
from specrun.llama.batch import Batch
from specrun.llama.context import ContextConfig, LlamaContext, Logits
from specrun.llama.target import score_together
from specrun.llama_settings import LlamaSettings
from specrun.speculation.planning.pass_sizes import ANY_SIZE, PassSizes
from specrun.speculation.tree import ROOT, TokenTree
from tests.soak.failing import MOMENTS, Moment, OnPurposeError, failing
from tests.trees import random_path, random_tree

PROMPT = "import os\n\n\ndef read_config(path):\n    with open(path) as file:\n"


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    with LlamaModel(embedded.TARGET) as model:
        yield model


def make_context(model: LlamaModel, n_seq_max: int, n_ctx: int = 2048) -> LlamaContext:
    settings = LlamaSettings(threads=1, type_v="bf16")
    config = ContextConfig(n_ctx=n_ctx, n_seq_max=n_seq_max, n_batch=1024, n_outputs=640, settings=settings)
    return LlamaContext(model, config)


def plain_logits(model: LlamaModel, tokens: list[int]) -> np.ndarray:
    """float32[n_vocab] after `tokens`, from a fresh context and a last pass of one token."""
    with make_context(model, n_seq_max=1) as context:
        target = TargetContext(context)
        target.set_prompt(tokens)
        return target.score(TokenTree.root_only(tokens[-1]))[0].copy()


@pytest.mark.slow
@pytest.mark.parametrize(("n_nodes", "max_leaves"), [(2, 256), (17, 256), (63, 256), (64, 256), (300, 256), (600, 256)])
def test_a_tree_scores_as_its_paths_do_one_by_one(model: LlamaModel, n_nodes: int, max_leaves: int) -> None:
    rng = np.random.default_rng(n_nodes)
    prompt = model.tokenize(PROMPT, add_special=False)
    tree = random_tree(rng, n_nodes, model.n_vocab, prompt[-1], max_leaves)
    with make_context(model, n_seq_max=256) as context:
        target = TargetContext(context)
        target.set_prompt(prompt)
        rows = target.score(tree).copy()
    leaves = [node for node, children in enumerate(tree.children) if not children]
    with make_context(model, n_seq_max=1) as context:
        target = TargetContext(context)
        for leaf in rng.permutation(leaves)[:12].tolist():
            path = tree.path_to(leaf)
            target.set_prompt(prompt)
            for node in path:
                root = TokenTree.root_only(int(tree.tokens[node]))
                row = target.score(root)[0]
                np.testing.assert_array_equal(rows[node], row, err_msg=f"node {node} of {n_nodes}")
                target.commit(root, [ROOT], int(tree.tokens[path[min(path.index(node) + 1, len(path) - 1)]]))


@pytest.mark.parametrize(
    ("n_seq_max", "padding", "n_steps"),
    [
        (8, ANY_SIZE, 13),
        *(
            pytest.param(n, padding, 60, marks=pytest.mark.slow)
            for n in (1, 8, 64)
            for padding in (ANY_SIZE, PassSizes(8, 4), PassSizes.only(64))
        ),
    ],
    ids=str,
)
def test_after_many_commits_the_cache_is_that_of_plain_decoding(
    model: LlamaModel, n_seq_max: int, padding: PassSizes, n_steps: int
) -> None:
    rng = np.random.default_rng(n_seq_max)
    prompt = model.tokenize(PROMPT, add_special=False)
    with make_context(model, n_seq_max) as context:
        target = TargetContext(context)
        target.padding = padding
        target.set_prompt(prompt)
        for step in range(n_steps):
            n_nodes = min(int(rng.integers(1, 48)), target.room())
            tree = random_tree(rng, n_nodes, model.n_vocab, target.tokens[-1], n_seq_max)
            assert target.pass_size(tree) in padding
            score_together([(target, tree)], least=int(rng.choice([0, 64])) if padding.most is None else 0)
            target.commit(tree, random_path(rng, tree), int(rng.integers(model.n_vocab)))
            # No stray cells: a sequence ends where the cached text does or is empty, in llama.cpp's own count too.
            lengths = context.sequence_lengths().tolist()
            assert lengths[0] == target.n_cached
            assert set(lengths) <= {target.n_cached, 0}
            assert [context.sequence_end(seq) for seq in range(n_seq_max)] == lengths
            if step % 12 == 0:
                row = target.score(TokenTree.root_only(target.tokens[-1]))[0].copy()
                np.testing.assert_array_equal(row, plain_logits(model, target.tokens))
                target.commit(TokenTree.root_only(target.tokens[-1]), [ROOT], int(rng.integers(model.n_vocab)))


@pytest.mark.slow
def test_the_text_is_on_as_many_sequences_as_recent_trees_have_leaves(model: LlamaModel) -> None:
    prompt = model.tokenize(PROMPT, add_special=False)
    with make_context(model, n_seq_max=64) as context:
        target = TargetContext(context)
        target.set_prompt(prompt)
        rng = np.random.default_rng(1)

        def in_use_after(tree: TokenTree) -> int:
            target.score(tree)
            target.commit(tree, random_path(rng, tree), int(rng.integers(model.n_vocab)))
            return int((context.sequence_lengths() > 0).sum())

        def bush() -> TokenTree:
            return random_tree(rng, 40, model.n_vocab, target.tokens[-1])

        def root() -> TokenTree:
            return TokenTree.root_only(target.tokens[-1])

        assert in_use_after(root()) == 1
        for _ in range(2):
            tree = bush()
            assert in_use_after(tree) == tree.n_leaves > 8
            assert [in_use_after(root()) for _ in range(80)][-1] == 1
        in_use_after(bush())
        row = target.score(TokenTree.root_only(target.tokens[-1]))[0]
        np.testing.assert_array_equal(row, plain_logits(model, target.tokens))


def test_a_new_prompt_keeps_the_cells_it_shares(model: LlamaModel) -> None:
    prompt = model.tokenize(PROMPT, add_special=False)
    with make_context(model, n_seq_max=4) as context:
        target = TargetContext(context)
        assert target.set_prompt(prompt) == len(prompt) - 1
        assert target.set_prompt([*prompt, 5, 6, 7]) == 3
        assert target.set_prompt(prompt[:6]) == 0
        np.testing.assert_array_equal(target.score(TokenTree.root_only(prompt[5]))[0], plain_logits(model, prompt[:6]))


def test_resetting_forgets_everything(model: LlamaModel) -> None:
    prompt = model.tokenize(PROMPT, add_special=False)
    with make_context(model, n_seq_max=4) as context:
        target = TargetContext(context)
        target.set_prompt(prompt)
        target.reset()
        assert set(context.sequence_lengths().tolist()) == {0}
        assert target.set_prompt(prompt[:5]) == 4
        np.testing.assert_array_equal(target.score(TokenTree.root_only(prompt[4]))[0], plain_logits(model, prompt[:5]))


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS, ids=str)
def test_after_an_interruption_at_any_moment_the_next_text_is_right(model: LlamaModel, moment: Moment) -> None:
    prompt = model.tokenize(PROMPT, add_special=False)
    tree = TokenTree.build([prompt[-1], 5, 6, 7], [-1, ROOT, ROOT, 2], [0, -1, -2, -3])
    with make_context(model, n_seq_max=4) as context:
        target = TargetContext(context)
        for after in range(4):
            target.set_prompt(prompt)
            with failing(context, moment, after), suppress(OnPurposeError):
                target.score(tree)
                target.commit(tree, [ROOT, 2], 8)
                target.set_prompt(prompt[:6])
                target.reset()
            for text in ([*prompt, 6, 8, 9], prompt[:9]):
                target.set_prompt(text)
                row = target.score(TokenTree.root_only(text[-1]))[0]
                np.testing.assert_array_equal(row, plain_logits(model, text))
                target.drop_tree()


def test_a_tree_that_does_not_fit_is_refused_before_it_is_decoded(model: LlamaModel) -> None:
    with make_context(model, n_seq_max=4, n_ctx=256) as context:
        target = TargetContext(context)
        target.set_prompt(list(range(10, 250)))
        assert target.room() == 17
        with pytest.raises(ContextFullError):
            target.score(TokenTree.chain([249, *range(17)]))
        assert target.score(TokenTree.chain([249, *range(16)])).shape == (17, model.n_vocab)


def test_a_prompt_beyond_the_cache_is_refused(model: LlamaModel) -> None:
    with make_context(model, n_seq_max=1, n_ctx=256) as context, pytest.raises(ContextFullError):
        TargetContext(context).set_prompt(list(range(300)))


@pytest.mark.slow
def test_every_pass_and_its_rows_have_a_size_of_the_class(model: LlamaModel, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    sizes: list[int] = []
    with make_context(model, n_seq_max=8) as context:
        decode = context.decode

        def recorded(batch: Batch) -> Logits:
            sizes.extend(size for size in (len(batch), int(batch.outputs.sum())) if size)
            return decode(batch)

        monkeypatch.setattr(context, "decode", recorded)
        target = TargetContext(context)
        target.padding = PassSizes(8, 4, 40)
        target.set_prompt(model.tokenize(PROMPT, add_special=False)[:30])
        for _ in range(30):
            tree = random_tree(rng, int(rng.integers(1, target.room() + 1)), model.n_vocab, target.tokens[-1], 8)
            rows = target.score(tree)
            assert rows.shape == (len(tree), model.n_vocab)
            target.commit(tree, random_path(rng, tree), int(rng.integers(model.n_vocab)))
        # Text of the turn before still waits for its pass; new text follows.
        target.set_prompt([*target.tokens, *range(100, 137)])
    assert all(size in target.padding for size in sizes)
    assert {8, 40} <= set(sizes)


def test_a_tree_that_would_not_fit_with_its_padding_has_no_room(model: LlamaModel) -> None:
    with make_context(model, n_seq_max=4, n_ctx=256) as context:
        target = TargetContext(context)
        target.set_prompt(list(range(10, 250)))
        target.padding = PassSizes(8, 8)
        assert target.room() == 16
        target.padding = PassSizes(8, 8, 8)
        assert target.room() == 8
