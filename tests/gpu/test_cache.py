"""Trees, commits and prefixes that come back leave a KV cache on a device as plain decoding does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from specrun.decoding.engine import Engine
from specrun.llama_settings import ALL_LAYERS, LlamaSettings
from specrun.speculation.tree import ROOT, TokenTree, n_in_order
from tests.engines import code_prompts
from tests.gpu.pairs import pair, single
from tests.models import wide_heads
from tests.trees import random_path, random_tree

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

SIZE = 16  # tokens of every pass


def decoded(engine: Engine, prompt: list[int], tokens: list[int]) -> np.ndarray:
    """float32[n_vocab] after `tokens`, which are decoded one by one after the prompt."""
    target = engine.target
    target.reset()
    target.set_prompt(prompt)
    for token in tokens:
        root = TokenTree.root_only(target.tokens[-1])
        target.score(root)
        target.commit(root, [ROOT], token)
    return target.score(TokenTree.root_only(target.tokens[-1]))[0].copy()


@pytest.mark.parametrize(("n", "head_dim"), [(1, 64), (5, 128), (ALL_LAYERS, 64)])
def test_after_commits_and_another_prompt_the_cache_is_that_of_plain_decoding(
    n: int, head_dim: int, made: Path
) -> None:
    rng = np.random.default_rng(0)
    with pair(LlamaSettings(gpu_layers=n), draft_layers=0, target=wide_heads(made, head_dim)) as model:
        engine, target = model.engine, model.engine.target
        target.padding = single(SIZE)
        (prompt,) = code_prompts(engine, 1, 40)
        for end in (len(prompt), 20):  # the second prompt is a prefix of the first one, with other text after it
            target.set_prompt(prompt[:end])
            for _ in range(6):
                tree = random_tree(rng, int(rng.integers(2, SIZE)), target.n_vocab, target.tokens[-1])
                target.score(tree)
                path = random_path(rng, tree)
                target.commit(tree, path[: n_in_order(path)], int(rng.integers(target.n_vocab)))
                assert set(target.context.sequence_lengths().tolist()) <= {target.n_cached, 0}
            written = target.tokens[end:]
            assert len(written) > 6, "nothing but roots was committed"
            row = target.score(TokenTree.root_only(target.tokens[-1]))[0].copy()
            np.testing.assert_array_equal(row, decoded(engine, prompt[:end], written))


def test_a_prefix_is_read_once() -> None:
    with pair(LlamaSettings(gpu_layers=5), draft_layers=0) as model:
        target = model.engine.target
        target.padding = single(SIZE)
        prompt, more = code_prompts(model.engine, 2, 40)
        assert target.set_prompt(prompt) == len(prompt) - 1
        assert target.set_prompt([*prompt, *more]) == len(more)
        assert target.set_prompt(prompt[:10]) == 0
        row = target.score(TokenTree.root_only(prompt[9]))[0].copy()
        target.drop_tree()
        np.testing.assert_array_equal(row, target.score(TokenTree.root_only(prompt[9]))[0])
