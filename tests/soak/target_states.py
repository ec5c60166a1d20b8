"""The target's context in random order: whatever was done before, it holds what a fresh context holds, to the last bit.

Prompts that share a beginning with the text before, trees that are committed, dropped or forgotten, passes that fail or
are interrupted at any moment, and an emptied cache. After every step the cache is compared with that of a context
which has only ever read the committed text: positions, K and V, the number of cells, and every sequence's length. The
logits of a path of every tree are compared with plain decoding's. docs/exactness.md says for which types they are the
same bits. With `StreamedStates` most weights are streamed, the way of reading changes between steps, and memory becomes
short.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar
from unittest.mock import patch

import hypothesis.strategies as st
import numpy as np
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from specrun.errors import ContextFullError, LlamaError
from specrun.hardware.memory import Pressure
from specrun.llama import LlamaModel, TargetContext
from specrun.llama.context import ContextConfig, LlamaContext
from specrun.llama.streaming.ring import Ring
from specrun.llama.streaming.streamed_weights import StreamedWeights
from specrun.llama.target import score_together
from specrun.llama_settings import LlamaSettings
from specrun.speculation.planning.pass_sizes import ANY_SIZE, PassSizes
from specrun.speculation.tree import TokenTree, n_in_order
from tests.soak.failing import MOMENTS, Moment, OnPurposeError, failing
from tests.soak.fresh import Fresh, check_cache, check_lengths, opened
from tests.streams import streamed_context
from tests.trees import random_path, random_tree

SEEDS = st.integers(0, 2**32 - 1)
SHARES = st.sampled_from([0.0, 0.5, 1.0])  # of the text before that stay
_LARGEST = 40  # nodes


@dataclass(frozen=True)
class Subject:
    """What a machine tries.

    model: the target; with streamed weights, a copy of its file that is not streamed. longest: most tokens of a text.
    paddings: the sizes to which its passes may be padded, so that a token's bits are the same in all.
    """

    model: LlamaModel
    longest: int = 300
    paddings: tuple[PassSizes, ...] = (ANY_SIZE, PassSizes(8, 4), PassSizes.only(64))


class TargetStates(RuleBasedStateMachine):
    """subject: set by whoever runs it. counts: what was done so far, by all machines together."""

    subject: ClassVar[Subject]
    counts: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.resources = ExitStack()
        self.counts["examples"] += 1

    @initialize(
        n_seq_max=st.sampled_from([1, 4, 16]), n_batch=st.sampled_from([64, 256]), place=st.integers(0, 2), seed=SEEDS
    )
    def begin(self, n_seq_max: int, n_batch: int, place: int, seed: int) -> None:
        subject = self.subject
        padding = subject.paddings[place % len(subject.paddings)]
        # A fresh context reads all text as a prompt, so passes over prompts have to be of the class, too.
        prompt_pass = min(n_batch, padding.most or n_batch)
        settings = LlamaSettings(threads=1, type_v="bf16", ubatch_size=prompt_pass)
        config = ContextConfig(subject.longest + 168, n_seq_max, n_batch, 64, settings)
        self.target = TargetContext(self.opened(config))
        self.target.padding = padding
        self.fresh = Fresh(opened(subject.model, replace(config, n_seq_max=1)), padding)
        self.n_vocab = subject.model.n_vocab
        self.prompt(0.0, 20, seed)

    def opened(self, config: ContextConfig) -> LlamaContext:
        """The context that is tried."""
        return self.resources.enter_context(LlamaContext(self.subject.model, config))

    def teardown(self) -> None:
        self.resources.close()

    # --- steps -------------------------------------------------------------------------------------------------------

    @rule(keep=SHARES, n_new=st.integers(0, 90), seed=SEEDS)
    def prompt(self, keep: float, n_new: int, seed: int) -> None:
        """A text that shares a part of the text before."""
        text = self._text(keep, n_new, seed)
        n_kept = min(_n_equal(self.target.tokens, text), self.target.n_cached, len(text) - 1)
        assert self.target.set_prompt(text) == len(text) - 1 - n_kept

    @rule(seed=SEEDS)
    def long_prompt(self, seed: int) -> None:
        """A text that takes several passes, and goes beyond the cells at which kernels change."""
        self.prompt(0.0, self.subject.longest, seed)

    @rule(keep=SHARES, n_new=st.integers(1, 300), n_passes=st.integers(0, 4), keep_then=SHARES, seed=SEEDS)
    def interrupted_prompt(self, keep: float, n_new: int, n_passes: int, keep_then: float, seed: int) -> None:
        """A text of which only the first passes are made, and another one."""
        self.target.begin_prompt(self._text(keep, n_new, seed))
        for _ in range(n_passes):
            if self.target.n_chunk:
                score_together([], [self.target])
        self.prompt(keep_then, 5, seed + 1)

    @rule(keep_then=SHARES, seed=SEEDS)
    def prompt_that_does_not_fit(self, keep_then: float, seed: int) -> None:
        before = list(self.target.tokens)
        try:
            self.target.set_prompt([*before[:50], *self._tokens(seed, self.target.context.config.n_ctx)])
            raise AssertionError("it fits")
        except ContextFullError:
            self.target.tokens = self.target.tokens[: self.subject.longest // 2]
            self.prompt(keep_then, 5, seed + 1)

    @rule(n_nodes=st.integers(1, _LARGEST), eagerness=st.sampled_from([0.0, 0.5, 0.9, 1.0]), seed=SEEDS)
    def score_and_commit(self, n_nodes: int, eagerness: float, seed: int) -> None:
        """A pass over a tree, of which a path is kept: often the first one, whose cells can stay where they are."""
        rng = np.random.default_rng(seed)
        tree = self._scored(rng, n_nodes)
        path = random_path(rng, tree, eagerness)
        if rng.random() < 0.5:
            path = list(range(n_in_order(tree.path_to(int(np.argmax(tree.leaf_counts == 1))))))
        self.target.commit(tree, path, int(rng.integers(self.n_vocab)))
        self.counts["tokens"] += len(path)

    @rule(n_passes=st.integers(1, 20), seed=SEEDS)
    def plain_passes(self, n_passes: int, seed: int) -> None:
        """Passes over one token. After 32 of them sequences that no tree needed are given back."""
        for token in self._tokens(seed, n_passes):
            self._make_room(seed)
            root = TokenTree.root_only(self.target.tokens[-1])
            self.target.score(root)
            self.target.commit(root, [0], token)
            self.counts["tokens"] += 1

    @rule(n_nodes=st.integers(1, _LARGEST), seed=SEEDS)
    def score_and_drop(self, n_nodes: int, seed: int) -> None:
        self._scored(np.random.default_rng(seed), n_nodes)
        self.target.drop_tree()

    @rule(n_nodes=st.integers(1, _LARGEST), keep_then=SHARES, seed=SEEDS)
    def score_and_forget(self, n_nodes: int, keep_then: float, seed: int) -> None:
        """The text is given up between a pass and its commit, as an error of a drafter or of a terminal does."""
        self._scored(np.random.default_rng(seed), n_nodes)
        self.prompt(keep_then, 5, seed + 1)

    @rule(
        n_nodes=st.integers(1, _LARGEST),
        moment=st.sampled_from(MOMENTS),
        after=st.integers(0, 3),
        keep_then=SHARES,
        seed=SEEDS,
    )
    def failing_pass(self, n_nodes: int, moment: Moment, after: int, keep_then: float, seed: int) -> None:
        """A pass and its commit, which are interrupted somewhere."""
        self._make_room(seed)
        rng = np.random.default_rng(seed)
        tree = self._tree(rng, n_nodes)

        def pass_() -> None:
            self.target.score(tree)
            self.target.commit(tree, random_path(rng, tree), int(rng.integers(self.n_vocab)))

        with failing(self.target.context, moment, after):
            self._expect(OnPurposeError, pass_)
        self.prompt(keep_then, 5, seed + 1)

    @rule(moment=st.sampled_from(MOMENTS), after=st.integers(0, 3), keep=SHARES, keep_then=SHARES, seed=SEEDS)
    def failing_prompt(self, moment: Moment, after: int, keep: float, keep_then: float, seed: int) -> None:
        text = self._text(keep, 250, seed)
        with failing(self.target.context, moment, after):
            self._expect(OnPurposeError, lambda: self.target.set_prompt(text))
        self.prompt(keep_then, 5, seed + 1)

    @rule(n_new=st.integers(1, 60), moment=st.sampled_from(MOMENTS), seed=SEEDS)
    def failing_reset(self, n_new: int, moment: Moment, seed: int) -> None:
        with failing(self.target.context, moment):
            self._expect(OnPurposeError, self.target.reset)
        self.prompt(0.5, n_new, seed)

    @rule(n_new=st.integers(1, 60), seed=SEEDS)
    def reset(self, n_new: int, seed: int) -> None:
        self.target.reset()
        assert not self.target.context.sequence_lengths().any()
        self.prompt(0.0, n_new, seed)

    # --- what must hold ----------------------------------------------------------------------------------------------

    @invariant()
    def holds_what_a_fresh_context_holds(self) -> None:
        self.counts["steps"] += 1
        check_lengths(self.target.context)
        check_cache(self.target, self.fresh)

    # --- parts -------------------------------------------------------------------------------------------------------

    def _tokens(self, seed: int, n: int) -> list[int]:
        return np.random.default_rng(seed).integers(self.n_vocab, size=n).tolist()

    def _text(self, keep: float, n_new: int, seed: int) -> list[int]:
        """The first part of the text before, and new tokens: at least one token, at most the longest text."""
        before, n_new = self.target.tokens, min(n_new, self.subject.longest)
        kept = before[: min(round(keep * len(before)), self.subject.longest - n_new)]
        return [*kept, *self._tokens(seed, n_new or int(not kept))]

    def _make_room(self, seed: int) -> None:
        if len(self.target.tokens) > self.subject.longest:
            self.prompt(0.5, 5, seed)

    def _tree(self, rng: np.random.Generator, n_nodes: int) -> TokenTree:
        n_nodes = min(n_nodes, self.target.room())
        return random_tree(rng, n_nodes, self.n_vocab, self.target.tokens[-1], self.target.max_leaves)

    def _scored(self, rng: np.random.Generator, n_nodes: int) -> TokenTree:
        """A tree whose pass was made, and its logits along one path compared with plain decoding's."""
        self._make_room(int(rng.integers(2**32)))
        tree = self._tree(rng, n_nodes)
        rows = self.target.score(tree)
        path = tree.path_to(int(rng.integers(len(tree))))
        expected = self.fresh.rows(self.target.tokens, tree.tokens[path[1:]].tolist())
        np.testing.assert_array_equal(rows[path], expected, err_msg=f"path {path} of {len(tree)} nodes")
        self.counts["trees"] += 1
        self.counts["rows compared"] += len(path)
        return tree

    def _expect(self, error: type[BaseException], act: Callable[[], object]) -> None:
        try:
            act()  # it may end before it comes to the pass that fails
        except error:
            self.counts["failed passes"] += 1


class StreamedStates(TargetStates):
    """path: the file whose layers are streamed."""

    path: ClassVar[Path]
    counts: ClassVar[Counter[str]] = Counter()

    def opened(self, config: ContextConfig) -> LlamaContext:
        self.pressure = _Shortage()
        return self.resources.enter_context(streamed_context(self.path, 2, 2, config, self.pressure))

    @property
    def weights(self) -> StreamedWeights:
        weights = self.target.context.weights
        assert isinstance(weights, StreamedWeights)
        return weights

    @rule(n_bytes=st.sampled_from([1, 50_000]), seed=SEEDS)
    def memory_is_short(self, n_bytes: int, seed: int) -> None:
        """Resident layers are given back before the next pass."""
        self.pressure.wanted = n_bytes
        self.plain_passes(1, seed)

    @rule(layer=st.integers(0, 4), keep_then=SHARES, seed=SEEDS)
    def failing_read(self, layer: int, keep_then: float, seed: int) -> None:
        self._make_room(seed)
        wait_for = Ring.wait_for

        def fails(ring: Ring, place: int) -> None:
            if place == layer:
                raise LlamaError("on purpose")
            wait_for(ring, place)

        with patch.object(Ring, "wait_for", fails):
            self._expect(LlamaError, lambda: self.target.score(TokenTree.root_only(self.target.tokens[-1])))
        self.prompt(keep_then, 5, seed)


class _Shortage(Pressure):
    """Memory that is short by `wanted` bytes before the next pass."""

    def __init__(self) -> None:
        super().__init__(0, lambda: 0)
        self.wanted = 0

    def shortage(self) -> int:
        wanted, self.wanted = self.wanted, 0
        return wanted


def _n_equal(a: list[int], b: list[int]) -> int:
    """Length of the common prefix, found in the plainest way."""
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n
