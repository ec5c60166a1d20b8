"""However a head came to a text, its logits are those of a new head that is given the target's states of all of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from specrun.catalog import embedded
from specrun.decoding.engine import Engine
from specrun.llama import HeadDraft
from specrun.llama.context import Logits
from specrun.speculation.drafter import DraftNode
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.tree import ROOT, TokenTree
from tests.eagle_heads import random_eagle3
from tests.engines import engine
from tests.mtp_targets import head_alone, random_mtp_glm4_moe, random_mtp_step35, trunk_alone
from tests.soak.failing import MOMENTS, Moment, OnPurposeError, failing

TEXT = list(range(40, 60))
# Node, parent, token: 1 - 2 - 3 is one path; 4 is beside 2, 5 below 4, and 6 beside 1.
NODES = [(1, ROOT, 11), (2, 1, 12), (3, 2, 13), (4, 1, 15), (5, 4, 16), (6, ROOT, 17)]
LEVELS = [[1, 6], [2, 4], [3, 5]]


@dataclass
class Head:
    """An engine with a head, and what the head drafts."""

    engine: Engine
    draft: HeadDraft

    def after(self, text: Sequence[int]) -> Logits:
        """The logits after a text that the target reads from its beginning, by a head that had forgotten everything."""
        self.engine.reset()
        self.engine.target.set_prompt(list(text))
        return self.draft.start(text).copy()

    def grown(self) -> dict[int, Logits]:
        """The logits after each of NODES, expanded level by level after the committed text."""
        rows: dict[int, Logits] = {}
        for level in LEVELS:
            nodes = [DraftNode(*NODES[id_ - 1]) for id_ in level]
            assert list(self.draft.expandable([node.parent for node in nodes], 16)) == list(range(len(nodes)))
            rows.update(zip(level, self.draft.expand(nodes).copy(), strict=True))
        return rows


def pair_of(folder: Path, kind: str) -> tuple[Path, Path]:
    """A target and its head."""
    if kind == "eagle3":
        return embedded.TARGET, random_eagle3(folder / "head.gguf")
    whole = {"mtp": random_mtp_step35, "mtp of a mixture": random_mtp_glm4_moe}.get(kind, random_mtp_step35)(
        folder / "whole.gguf"
    )
    if kind == "mtp beside the target":
        return trunk_alone(folder / "trunk.gguf", whole), head_alone(folder / "mtp.gguf", whole)
    return whole, whole


@pytest.fixture(scope="module", params=["eagle3", "mtp", "mtp of a mixture", "mtp beside the target"])
def head(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    target, file = pair_of(tmp_path_factory.mktemp("heads"), request.param)
    with engine(target, file, SPECEXEC.plan(32, 8)) as e:
        assert isinstance(e.draft, HeadDraft)
        assert e.draft.kind == request.param[: len(e.draft.kind)]
        yield Head(e, e.draft)


def assert_close(row: Logits, expected: Logits) -> None:
    """Logits of tokens that the head cannot draft are minus infinity in both."""
    np.testing.assert_allclose(row, expected, atol=2e-2)


def accept(head: Head, path: Sequence[int], next_token: int) -> None:
    """One round: the target checks all of NODES and commits `path`, node ids after the root, and `next_token`."""
    tokens, parents = [head.engine.target.tokens[-1]], [-1]
    tokens += [token for _, _, token in NODES]
    parents += [parent for _, parent, _ in NODES]
    scores = [-float(i) for i in range(len(tokens))]
    tree = TokenTree.build(tokens, parents, scores, [1.0] * len(tokens))
    places = [ROOT]
    for id_ in path:
        token = NODES[id_ - 1][2]
        places.append(next(child for child in tree.children[places[-1]] if int(tree.tokens[child]) == token))
    head.engine.target.score(tree)
    head.engine.target.commit(tree, places, next_token)


@pytest.mark.slow
@pytest.mark.parametrize("path", [[], [1], [6], [1, 4, 5], [1, 2, 3]], ids=str)
def test_drafts_after_rounds_are_those_from_scratch(head: Head, path: list[int]) -> None:
    # Several rounds, so that accepted tokens that are decoded again have their states, too.
    text = [*TEXT, *(token for _ in range(3) for token in ([*(NODES[i - 1][2] for i in path), 30]))]
    expected = head.after(text)
    rows_expected = head.grown()
    head.after(TEXT)
    for _ in range(3):
        head.grown()
        accept(head, path, 30)
        row = head.draft.start(head.engine.target.tokens).copy()
    assert head.engine.target.tokens == text
    assert head.draft.n_unread([*text, 11]) == 1
    assert head.draft.n_unread(text) == 1
    assert_close(row, expected)
    for id_, found in head.grown().items():
        assert_close(found, rows_expected[id_])


def test_a_node_is_drafted_as_what_is_below_its_own_path_only(head: Head) -> None:
    head.after(TEXT)
    rows = head.grown()
    for path in ([1, 2, 3], [1, 4, 5], [6]):
        head.draft.start(TEXT)
        for id_ in path:
            assert_close(head.draft.expand([DraftNode(*NODES[id_ - 1])])[0], rows[id_])


def test_a_prefix_that_the_target_kept_has_its_states(head: Head) -> None:
    for shared in (1, 2, 7, len(TEXT) - 1, len(TEXT)):
        text = [*TEXT[:shared], 90, 91, 92]
        expected = head.after(text)
        head.after(TEXT)
        decoded = head.engine.target.set_prompt(text)
        assert decoded <= len(text) - min(shared, len(TEXT) - 1), "the target read its prefix again"
        assert_close(head.draft.start(text), expected)


def test_passes_without_drafting_are_caught_up_with(head: Head) -> None:
    n = 150  # more than the head reads in one pass
    expected = head.after([*TEXT, *[31] * n])
    head.after(TEXT)
    for _ in range(n):
        head.engine.target.score(TokenTree.root_only(head.engine.target.tokens[-1]))
        head.engine.target.commit(TokenTree.root_only(head.engine.target.tokens[-1]), [ROOT], 31)
    assert_close(head.draft.start(head.engine.target.tokens), expected)


def test_a_node_waits_until_its_parent_was_expanded(head: Head) -> None:
    head.after(TEXT)
    assert list(head.draft.expandable([ROOT, 1, ROOT, 1], 16)) == [0, 2]
    head.draft.expand([DraftNode(1, ROOT, 11)])
    assert list(head.draft.expandable([1, ROOT, 2], 16)) == [0, 1]


def test_an_eagle_has_no_state_to_draft_from_in_a_text_of_one_token(head: Head) -> None:
    is_eagle = head.draft.kind == "eagle3"
    assert head.after([40]).any() != is_eagle
    assert list(head.draft.expandable([ROOT], 16)) == ([] if is_eagle else [0])
    assert_close(head.after([40, 41]), head.after([40, 41]))
    assert len(head.draft.expandable([ROOT], 16)) == 1


def test_rows_along_a_text_are_those_behind_each_token(head: Head) -> None:
    head.engine.read_for_draft(TEXT)
    rows = [row.copy() for row in head.draft.rows_along(TEXT, 0)]
    assert len(rows) == len(TEXT)
    for n in (1, 2, 3, len(TEXT)):
        assert_close(rows[n - 1], head.after(TEXT[:n]))


def test_a_text_that_the_target_has_not_read_is_refused(head: Head) -> None:
    head.after(TEXT)
    with pytest.raises(ValueError, match="the target has not read this text"):
        head.draft.start([*TEXT[:-3], 99, 98, 97])
    assert_close(head.draft.start(TEXT), head.after(TEXT))


@pytest.mark.parametrize("moment", MOMENTS, ids=str)
@pytest.mark.parametrize("is_target", [False, True], ids=["head", "target"])
def test_after_an_interruption_at_any_moment_the_next_text_is_right(
    head: Head, moment: Moment, is_target: bool
) -> None:
    text = [*TEXT, 11, 12, 30]
    expected = head.after(text)
    context = (head.engine.target if is_target else head.draft).context
    for n_before in range(3):
        head.after(TEXT)
        with failing(context, moment, n_before), suppress(OnPurposeError):
            head.grown()
            accept(head, [1, 4], 31)
            head.draft.start(head.engine.target.tokens)
            head.engine.target.set_prompt(TEXT[:8])
            head.draft.start(TEXT[:8])
        head.engine.target.set_prompt(text)
        assert_close(head.draft.start(text), expected)


@pytest.mark.slow
def test_a_head_with_an_embedding_of_its_own(tmp_path: Path) -> None:
    file = random_eagle3(tmp_path / "head.gguf", owns_embedding=True)
    with engine(embedded.TARGET, file, SPECEXEC.plan(8, 4)) as e:
        assert isinstance(e.draft, HeadDraft)
        test_drafts_after_rounds_are_those_from_scratch(Head(e, e.draft), [1, 2])
