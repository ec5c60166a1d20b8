"""However nodes are distributed over draft passes, their logits are those of their paths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np
import pytest

from specrun.catalog import embedded
from specrun.errors import LlamaError
from specrun.llama import DraftContext
from specrun.llama.batch import Batch
from specrun.llama.draft_tokens import SameTokens
from specrun.sampling import Sampler, SamplingParameters
from specrun.speculation.drafter import DraftLimits, DraftNode
from specrun.speculation.drafters.specexec import SPECEXEC, SpecExecDrafter
from specrun.speculation.growth import ModelCandidates
from specrun.speculation.method import OFF
from specrun.speculation.tree import ROOT
from tests.engines import code_prompts, engine, first_difference, write
from tests.soak.failing import MOMENTS, Moment, OnPurposeError, failing

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
        assert list(draft.expandable([nodes[i].parent for i in ids], 16)) == list(range(len(ids)))
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
        assert list(draft.expandable([ROOT, ROOT, ROOT], 16)) == [0, 1]
        draft.expand([DraftNode(1, ROOT, 11)])
        draft.expand([DraftNode(2, ROOT, 12)])
        assert list(draft.expandable([ROOT, 1, 1, 2], 16)) == [1, 3]


def test_sequences_of_branches_without_open_nodes_are_used_again() -> None:
    with engine(embedded.TARGET, embedded.DRAFT, SPECEXEC.plan(4, 2)) as e:
        draft = e.draft
        assert draft
        draft.start(TEXT)
        assert list(draft.expandable([ROOT] * 5, 16)) == [0, 1, 2, 3]
        draft.expand([DraftNode(id_, ROOT, 10 + id_) for id_ in (1, 2, 3, 4)])
        # Below 1 alone there is growth, so the sequences of its siblings are free.
        assert list(draft.expandable([1] * 5, 16)) == [0, 1, 2, 3]
        draft.expand([DraftNode(id_, 1, 10 + id_) for id_ in (5, 6, 7, 8)])
        # The tip of a sequence is given up where a node above it is the open one.
        assert list(draft.expandable([1, 1, 5], 16)) == [0, 1, 2]


def test_rows_stay_those_of_the_path_when_sequences_and_cells_are_used_again() -> None:
    n_nodes = 8
    rng = np.random.default_rng(1)
    with engine(embedded.TARGET, embedded.DRAFT, SPECEXEC.plan(n_nodes, 4), ctx_size=len(TEXT)) as e:
        draft = e.draft
        assert draft
        n_cells = draft.context.config.n_ctx - len(TEXT)
        paths: dict[int, list[int]] = {ROOT: []}
        rows: dict[int, np.ndarray] = {}
        parents = [ROOT]  # the nodes that may get further children
        draft.start(TEXT)
        for _ in range(12):
            offered = [int(rng.choice(parents)) for _ in range(2 * n_nodes)]
            nodes = []
            for place in draft.expandable(offered, n_nodes):
                id_, token = len(paths), int(rng.integers(10, 200))
                paths[id_] = [*paths[offered[place]], token]
                nodes.append(DraftNode(id_, offered[place], token))
            for node, row in zip(nodes, draft.expand(nodes).copy(), strict=True):
                rows[node.id] = row
            # Old nodes stay open, too, so that sequences go on from the middle of a path.
            parents = [int(node) for node in rng.choice([*set(offered), *(node.id for node in nodes)], 4)]
        assert len(rows) > n_cells, "no cell had to be used again"
        for id_, row in rows.items():
            # Rounding moves logits by up to 0.1, on processors without AVX-512; a token less of the path by 1 and more.
            np.testing.assert_allclose(row, after(draft, [*TEXT, *paths[id_]]), atol=0.3)


@pytest.mark.slow
def test_a_tree_grows_as_wide_as_with_more_sequences() -> None:
    budget = 48
    trees = []
    for n_sequences in (budget // 2, 4 * budget):
        with engine(embedded.TARGET, embedded.DRAFT, SPECEXEC.plan(n_sequences, 16)) as e:
            assert e.draft
            sampler = Sampler(SamplingParameters(temperature=0), e.target.n_vocab)
            drafter = SpecExecDrafter(ModelCandidates(e.draft, sampler))
            bounds = DraftLimits(budget, 16, budget, budget)
            trees.append([drafter.draft(prompt, bounds).tree for prompt in code_prompts(e, 3, 40)])
    for few, many in zip(*trees, strict=True):
        assert few.tokens.tolist() == many.tokens.tolist()
        assert few.parents.tolist() == many.parents.tolist()


@pytest.fixture
def decoded(draft: DraftContext, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of each draft pass so far."""
    sizes: list[int] = []
    decode = draft.context.decode

    def noted(batch: Batch) -> np.ndarray:
        rows = decode(batch)
        sizes.append(len(batch))
        return rows

    draft.reset()
    monkeypatch.setattr(draft.context, "decode", noted)
    return sizes


@pytest.mark.parametrize(
    ("path", "n_missing"), [([11], 1), ([11, 15, 16], 1), ([11, 12, 99, 98], 3), ([99], 2)], ids=str
)
def test_accepted_nodes_are_not_decoded_again(
    draft: DraftContext, decoded: list[int], path: list[int], n_missing: int
) -> None:
    draft.start(TEXT)
    for ids in ([1], [2, 5], [3, 6], [4]):
        draft.expand([DraftNode(*NODES[id_ - 1]) for id_ in ids])
    text = [*TEXT, *path, 30]
    decoded.clear()
    rows = [after(draft, text)]
    assert decoded == [n_missing]
    # What grows after that text may use any sequence, and sees all of the text.
    below = [DraftNode(id_, ROOT, 50 + id_) for id_ in range(1, 9)]
    rows += list(draft.expand(below).copy())
    draft.reset()
    for row, tail in zip(rows, [[], *([node.token] for node in below)], strict=True):
        np.testing.assert_allclose(row, after(draft, [*text, *tail]), atol=2e-2)


def test_nodes_of_a_failed_pass_are_decoded(draft: DraftContext, monkeypatch: pytest.MonkeyPatch) -> None:
    draft.start(TEXT)
    draft.expand([DraftNode(1, ROOT, 11), DraftNode(2, ROOT, 12)])
    with monkeypatch.context() as patch:

        def fails(_: Batch) -> np.ndarray:
            raise LlamaError("on purpose")

        patch.setattr(draft.context, "decode", fails)
        with pytest.raises(LlamaError):
            draft.expand([DraftNode(3, 1, 13), DraftNode(4, 1, 14)])
    row = after(draft, [*TEXT, 11, 14, 15])
    draft.reset()
    np.testing.assert_allclose(row, after(draft, [*TEXT, 11, 14, 15]), atol=2e-2)


@pytest.mark.parametrize("moment", MOMENTS, ids=str)
def test_after_an_interruption_at_any_moment_the_next_text_is_right(draft: DraftContext, moment: Moment) -> None:
    text = [*TEXT, 11, 12, 30]
    draft.reset()
    expected = after(draft, text)
    for n_before in range(3):
        draft.start(TEXT)
        with failing(draft.context, moment, n_before), suppress(OnPurposeError):
            draft.expand([DraftNode(1, ROOT, 11), DraftNode(2, ROOT, 12)])
            draft.expand([DraftNode(3, 1, 12), DraftNode(4, 1, 14)])
            draft.start([*TEXT, 11, 14, 31])
            draft.start(TEXT[:8])
        np.testing.assert_allclose(after(draft, text), expected, atol=2e-2)


def test_a_drafted_token_that_the_draft_lacks_is_read_as_token_0(draft: DraftContext) -> None:
    short = DraftContext(draft.context, SameTokens(100))
    short.start(TEXT)
    row = short.expand([DraftNode(1, ROOT, 10**6)])[0].copy()
    short.reset()
    np.testing.assert_allclose(row, after(short, [*TEXT, 0]), atol=2e-2)
    draft.reset()


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_text_is_the_same_and_fewer_tokens_are_decoded(temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    sampling, plan = SamplingParameters(temperature=temperature, seed=1), SPECEXEC.plan(16, 6)
    with engine(embedded.TARGET, embedded.DRAFT, plan) as e:
        draft = e.draft
        assert draft
        sizes: list[int] = []
        start, decode = draft.start, draft.context.decode

        def noted(tokens: Sequence[int]) -> np.ndarray:
            with monkeypatch.context() as patch:
                patch.setattr(draft.context, "decode", lambda batch: sizes.append(len(batch)) or decode(batch))
                return start(tokens)

        for prompt in code_prompts(e, 3, 40):
            plain = write(e, prompt, sampling, OFF.plan(), 60)
            e.reset()
            sizes.clear()
            monkeypatch.setattr(draft, "start", noted)
            written = write(e, prompt, sampling, plan, 60)
            assert first_difference(written, plain) is None
            # Without kept nodes, every committed token would be decoded.
            assert sum(sizes) - len(prompt) < 0.7 * len(written.tokens)
            e.reset()
