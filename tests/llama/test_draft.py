"""However nodes are distributed over draft passes, their logits are those of their paths."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from specrun.catalog import embedded
from specrun.llama import DraftContext
from specrun.speculation.drafter import DraftNode
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.tree import ROOT
from tests.engines import engine

TEXT = list(range(40, 60))
# Node, parent, token: 1 - 2 - 3 - 4 is one path; 5 is beside 2, and 6 below 5.
NODES = [(1, ROOT, 11), (2, 1, 12), (3, 2, 13), (4, 3, 14), (5, 1, 15), (6, 5, 16)]


@pytest.fixture(scope="module")
def draft() -> Iterator[DraftContext]:
    with engine(embedded.TARGET, embedded.DRAFT, SPECEXEC.plan(32, 8)) as e:
        assert e.draft
        yield e.draft


def after(draft: DraftContext, tokens: list[int]) -> np.ndarray:
    return draft.start(tokens).copy()


@pytest.mark.parametrize(
    "passes",
    [
        [[1], [2], [3], [4], [5], [6]],
        [[1], [2, 5], [3, 6], [4]],
        [[1, 2, 3, 4], [5, 6]],  # whole paths at once
        [[1], [2, 3, 5, 6], [4]],
        [[1, 2], [3, 5, 6, 4]],
    ],
    ids=str,
)
def test_rows_are_those_of_the_path(draft: DraftContext, passes: list[list[int]]) -> None:
    nodes = {id_: DraftNode(id_, parent, token) for id_, parent, token in NODES}
    rows = {}
    draft.start(TEXT)
    for ids in passes:
        assert list(draft.expandable([nodes[i].parent for i in ids])) == list(range(len(ids)))
        found = draft.expand([nodes[i] for i in ids]).copy()
        rows.update(zip(ids, found, strict=True))
    for id_ in rows:
        path, node = [], id_
        while node != ROOT:
            path.append(nodes[node].token)
            node = nodes[node].parent
        np.testing.assert_allclose(rows[id_], after(draft, [*TEXT, *path[::-1]]), atol=2e-2)


def test_the_text_before_is_kept_as_far_as_it_is_shared(draft: DraftContext) -> None:
    whole = after(draft, TEXT)
    draft.start([*TEXT[:10], 1, 2, 3])
    np.testing.assert_allclose(after(draft, TEXT), whole, atol=2e-2)
    draft.reset()
    np.testing.assert_allclose(after(draft, TEXT), whole, atol=2e-2)


def test_without_a_free_sequence_nodes_that_continue_one_are_still_expanded() -> None:
    with engine(embedded.TARGET, embedded.DRAFT, SPECEXEC.plan(2, 1)) as e:
        draft = e.draft
        assert draft
        draft.start(TEXT)
        assert list(draft.expandable([ROOT, ROOT, ROOT])) == [0, 1]
        draft.expand([DraftNode(1, ROOT, 11)])
        draft.expand([DraftNode(2, ROOT, 12)])
        assert list(draft.expandable([ROOT, 1, 1, 2])) == [1, 3]
