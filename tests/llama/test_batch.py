"""Every bad batch is refused, by llama.cpp or, where that would abort, before it sees the batch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from specrun.errors import LlamaError
from specrun.llama import LlamaModel
from specrun.llama.batch import Batch, committed_tokens
from specrun.llama.context import ContextConfig, LlamaContext
from specrun.speculation.tree import TokenTree

LENGTHS = np.array([5, 5, 5, 3], np.int32)


def batch(
    tokens: list[int], positions: list[int], first_seq: list[int], n_seq: list[int], outputs: list[bool] | None = None
) -> Batch:
    return Batch(
        np.array(tokens, np.int32),
        np.array(positions, np.int32),
        np.array(first_seq, np.int32),
        np.array(n_seq, np.int32),
        np.array(outputs or [True] * len(tokens)),
    )


def check(b: Batch) -> list[int]:
    return b.lengths_after(n_batch=8, n_outputs_max=4, seq_length=LENGTHS).tolist()


def test_a_tree_is_accepted_and_lengths_follow() -> None:
    root, left, right, below = (1, 5, 0, 3), (2, 6, 0, 1), (3, 6, 1, 2), (4, 7, 1, 1)
    tokens, positions, first, count = (list(x) for x in zip(root, left, right, below, strict=True))
    assert check(batch(tokens, positions, first, count)) == [7, 8, 7, 3]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (batch([1], [5], [0], [0]), "without a sequence"),
        (batch([1], [5], [3], [2]), "sequence id"),
        (batch([1], [5], [-1], [1]), "sequence id"),
        (batch([], [], [], []), "0 tokens"),
        (batch([1] * 9, list(range(5, 14)), [0] * 9, [1] * 9), "9 tokens"),
        (batch([1] * 5, list(range(5, 10)), [0] * 5, [1] * 5), "logits rows"),
    ],
)
def test_what_llama_cpp_would_abort_on_is_refused(bad: Batch, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        check(bad)


@pytest.fixture(scope="module")
def context(random_model: Path) -> Iterator[LlamaContext]:
    """Three sequences of five tokens and one of three."""
    with LlamaModel(random_model) as model, LlamaContext(model, ContextConfig(64, 4, 8, 4)) as made:
        made.decode(committed_tokens([1, 2, 3], 0, 4, 0))
        made.decode(committed_tokens([4, 5], 3, 3, 0))
        yield made


@pytest.mark.parametrize(
    "bad",
    [
        batch([10**6], [5], [0], [1]),
        batch([-1], [5], [0], [1]),
        batch([1], [6], [0], [1]),
        batch([1], [4], [0], [1]),
        batch([1], [5], [2], [2]),
    ],
    ids=["no token", "token -1", "a gap", "a place twice", "sequences of other lengths"],
)
def test_other_bad_batches_are_refused_by_llama_cpp(bad: Batch, context: LlamaContext) -> None:
    with pytest.raises(LlamaError, match="failed on a pass"):
        context.decode(bad)
    assert context.sequence_lengths().tolist() == LENGTHS.tolist(), "nothing was written"


def test_lengths_after_random_trees_are_those_of_their_paths() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        n = int(rng.integers(2, 40))
        tree = TokenTree.build(range(n), [-1, *(int(rng.integers(i)) for i in range(1, n))], rng.random(n))
        whole = Batch(tree.tokens, 5 + tree.depths, tree.first_leaves, tree.leaf_counts, np.ones(n, np.bool_))
        lengths = whole.lengths_after(64, 64, np.full(tree.n_leaves + 1, 5, np.int32))
        leaves = [node for node, below in enumerate(tree.children) if not below]
        assert lengths.tolist() == [*(6 + tree.depths[leaf] for leaf in leaves), 5]
