"""The draft's context in random order: the logits of every node are those of its path in a fresh context.

Trees grow by draft passes over nodes of any depth, with more branches than there are sequences and more nodes than
there are cells, so that both are given up and used again. Then a text begins that goes on with a path of the tree, or
shares a part of the text before, or nothing. Passes fail or are interrupted at any moment. Branches lie in any cells,
so logits are the same up to the rounding of sums in another order, and the likeliest token is the same wherever it
leads by more than that.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from typing import ClassVar

import hypothesis.strategies as st
import numpy as np
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from specrun.llama import DraftContext, LlamaModel
from specrun.llama.context import ContextConfig, LlamaContext, Logits
from specrun.llama.draft_tokens import SameTokens
from specrun.llama_settings import LlamaSettings
from specrun.speculation.drafter import DraftNode
from specrun.speculation.tree import ROOT
from tests.soak.failing import MOMENTS, Moment, OnPurposeError, failing
from tests.soak.fresh import Fresh, check_lengths, opened

SHARES = st.sampled_from([0.0, 0.5, 1.0])  # of the text before that stay
SEEDS = st.integers(0, 2**32 - 1)
ROUNDING = 0.05  # of a logit, where sums run over cells in another order
_LONGEST = 300


@dataclass(frozen=True)
class DraftSubject:
    """model: the draft. rounding: the largest difference of a logit that sums in another order explain."""

    model: LlamaModel
    rounding: float


class DraftStates(RuleBasedStateMachine):
    """subject: set by whoever runs it. counts: what was done so far, by all machines together."""

    subject: ClassVar[DraftSubject]
    counts: ClassVar[Counter[str]] = Counter()
    largest_difference: ClassVar[float] = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.resources = ExitStack()
        self.text: list[int] = []
        self.counts["examples"] += 1

    @initialize(n_seq_max=st.sampled_from([1, 3, 8]), n_further_cells=st.sampled_from([8, 40]), seed=SEEDS)
    def begin(self, n_seq_max: int, n_further_cells: int, seed: int) -> None:
        model = self.subject.model
        settings = LlamaSettings(threads=1, type_v="bf16")
        self.config = ContextConfig(_LONGEST + n_further_cells, n_seq_max, 64, max(n_seq_max, 16), settings)
        self.context = self.resources.enter_context(LlamaContext(model, self.config))
        self.draft = DraftContext(self.context, SameTokens(model.n_vocab))
        self.fresh = Fresh(opened(model, ContextConfig(512, 1, 64, 1, settings)))
        self.start(0.0, 10, seed)

    def teardown(self) -> None:
        self.resources.close()

    # --- steps -------------------------------------------------------------------------------------------------------

    @rule(keep=SHARES, n_new=st.integers(0, 80), seed=SEEDS)
    def start(self, keep: float, n_new: int, seed: int) -> None:
        """A text that shares a part of the text before."""
        self._start(self._text(keep, n_new, seed))

    @rule(n_new=st.integers(0, 3), seed=SEEDS)
    def start_behind_a_path(self, n_new: int, seed: int) -> None:
        """The text goes on with a path of the tree, as after a pass that accepted it."""
        self._start(self._behind_a_path(n_new, seed))

    @rule(n_offered=st.integers(1, 24), n_open=st.integers(1, 6), seed=SEEDS)
    def grow(self, n_offered: int, n_open: int, seed: int) -> None:
        """One draft pass, after which some nodes, old and new ones, may have further children."""
        rng = np.random.default_rng(seed)
        nodes = self._offered(rng, n_offered)
        if not nodes:
            return
        rows = self.draft.expand(nodes).copy()
        self._grown(nodes)
        place = int(rng.integers(len(nodes)))
        self._compare(rows[place], self.paths[nodes[place].id])
        self.open = sorted({int(node) for node in rng.choice([*self.open, *(node.id for node in nodes)], n_open)})
        self.counts["nodes"] += len(nodes)

    @rule(n_passes=st.integers(2, 6), seed=SEEDS)
    def grow_much(self, n_passes: int, seed: int) -> None:
        """Passes that take more sequences and cells than there are."""
        for i in range(n_passes):
            self.grow(20, 4, seed + i)

    @rule(moment=st.sampled_from(MOMENTS), after=st.integers(0, 2), goes_on=st.booleans(), seed=SEEDS)
    def failing_growth(self, moment: Moment, after: int, goes_on: bool, seed: int) -> None:
        """A draft pass that is interrupted somewhere; then a text that may go on with its nodes."""
        with failing(self.context, moment, after):
            try:
                nodes = self._offered(np.random.default_rng(seed), 8)
                self._grown(nodes)
                if nodes:
                    self.draft.expand(nodes)
            except OnPurposeError:
                self.counts["failed passes"] += 1
        self._start(self._behind_a_path(1, seed) if goes_on else self._tokens(seed, 10))

    @rule(moment=st.sampled_from(MOMENTS), after=st.integers(0, 2), goes_on=st.booleans(), keep=SHARES, seed=SEEDS)
    def failing_start(self, moment: Moment, after: int, goes_on: bool, keep: float, seed: int) -> None:
        """A text of which something fails, and another one."""
        text = self._behind_a_path(90, seed) if goes_on else self._text(keep, 90, seed)
        with failing(self.context, moment, after):
            try:
                self.draft.start(text)
            except OnPurposeError:
                self.counts["failed passes"] += 1
        self._start(self._behind_a_path(1, seed + 1))

    @rule(seed=SEEDS)
    def reset(self, seed: int) -> None:
        self.draft.reset()
        assert not self.context.sequence_lengths().any()
        self.start(0.5, 10, seed)

    # --- what must hold ----------------------------------------------------------------------------------------------

    @invariant()
    def lengths_are_those_of_llama_cpp(self) -> None:
        self.counts["steps"] += 1
        check_lengths(self.context)

    # --- parts -------------------------------------------------------------------------------------------------------

    def _tokens(self, seed: int, n: int) -> list[int]:
        return np.random.default_rng(seed).integers(self.subject.model.n_vocab, size=n).tolist()

    def _text(self, keep: float, n_new: int, seed: int) -> list[int]:
        kept = self.text[: round(keep * len(self.text))][: _LONGEST - n_new]
        return [*kept, *self._tokens(seed, n_new or int(not kept))]

    def _behind_a_path(self, n_new: int, seed: int) -> list[int]:
        """The text, a path of the tree, and new tokens."""
        path = self.paths[int(np.random.default_rng(seed).choice(list(self.paths)))]
        text = [*self.text, *path, *self._tokens(seed, n_new)]
        return text if len(text) <= _LONGEST else text[-20:]

    def _start(self, text: list[int]) -> None:
        row = self.draft.start(text).copy()
        self.text = text
        self.paths: dict[int, list[int]] = {ROOT: []}
        self.open = [ROOT]  # nodes that may have further children
        self._compare(row, [])

    def _offered(self, rng: np.random.Generator, n_offered: int) -> list[DraftNode]:
        """New nodes below open ones, as far as one pass can take them."""
        if not self.open:
            return []
        parents = rng.choice(self.open, n_offered).tolist()
        places = self.draft.expandable(parents, 16)
        assert list(places) == sorted(set(places))
        assert len(places) <= 16
        tokens = rng.integers(self.subject.model.n_vocab, size=len(places)).tolist()
        first = len(self.paths)
        self.open = sorted(set(parents))
        return [DraftNode(first + i, parents[place], tokens[i]) for i, place in enumerate(places)]

    def _grown(self, nodes: list[DraftNode]) -> None:
        for node in nodes:
            self.paths[node.id] = [*self.paths[node.parent], node.token]

    def _compare(self, row: Logits, path: list[int]) -> None:
        expected = self.fresh.rows([*self.text, *path], [])[0]
        difference = float(np.abs(row - expected).max())
        type(self).largest_difference = max(self.largest_difference, difference)
        assert difference <= self.subject.rounding, f"logits differ by {difference}"
        second, first = np.partition(expected, -2)[-2:]
        if first - second > 2 * self.subject.rounding:
            assert row.argmax() == expected.argmax()
        self.counts["rows compared"] += 1
