"""The target's KV cache in speculation: score a whole token tree in one pass, then keep the accepted path.

Cells always stay in the order of their positions. llama.cpp puts new tokens into the lowest free cells and attention
sums over cells in order, so a hole in front of an accepted token would change the order of later sums and with it the
last bits of the logits. A tree is decoded in depth-first order, likeliest path first. Of the accepted path only the
nodes in consecutive cells after the root are kept; the other tokens are decoded again at the front of the next pass.

Every leaf of a tree needs a sequence that holds the committed text. Marking a cell costs time for each sequence that it
is on, so the text is on as many sequences only as recent trees had leaves; others copy it when a tree needs them.

Passes may be padded to sizes that give a token the same bits (docs/exactness.md). Padding comes last in a pass, so it
lies in the last cells, and is dropped with the tree. llama.cpp computes the end of the last layer and the logits for
those tokens only whose logits are wanted, so the number of wanted rows is padded to the same sizes.

Of a model with recurrent states a pass checks one path, on one sequence, and its cache may have to go back further than
to the end of what was accepted (`taking_back`). Then more committed tokens are pending than one tree had, and once they
are many, they are decoded in a pass of their own. Committed tokens are not padded there, but wait until they are as
many as a pass of the class has.

Where a head drafts, the hidden states of each committed token are kept when it is committed (`heads.target_states`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from specrun.errors import ContextFullError
from specrun.llama.batch import Batch, committed_tokens
from specrun.llama.context import LlamaContext, Logits
from specrun.llama.heads.target_states import TargetStates
from specrun.llama.held_text import HeldText, SavedText
from specrun.llama.prefix import common_prefix
from specrun.llama.taking_back import taking_back
from specrun.speculation.planning.pass_sizes import ANY_SIZE, PassSizes
from specrun.speculation.tree import ROOT, TokenTree, n_in_order

_KEPT_PASSES = 32  # after so many passes sequences that none of their trees needed are emptied


class TargetContext:
    """The committed text of one generation and the target's KV cache of it.

    tokens: all committed text; its last token is the root of the next tree.
    n_cached: number of leading tokens that the cache holds; between passes it holds nothing else.
    padding: the sizes that passes are padded to. The passes over new text of a prompt are the same with every plan, so
        they may be larger than the largest of these sizes. The context needs room for the padding.
    states: keeps the hidden states of the committed text for a head; None without one. It has those of what is cached.
    """

    def __init__(self, context: LlamaContext) -> None:
        self.context = context
        self._cache = taking_back(context)
        self.tokens: list[int] = []
        self.n_cached = 0
        self.padding: PassSizes = ANY_SIZE
        self.states: TargetStates | None = None
        self._n_before = 0  # pending tokens in front of the tree scored last
        self._n_sequences = 1  # the first ones, which hold what is cached; the others are empty
        self._n_needed = 1  # most leaves of a tree since the number of sequences was last reconsidered
        self._n_passes = 0  # since then

    @property
    def n_vocab(self) -> int:
        return self.context.model.n_vocab

    @property
    def max_leaves(self) -> int:
        """Most leaf paths of a tree."""
        return self._cache.max_leaves

    @property
    def most_pending(self) -> int | None:
        """Most committed tokens that wait in front of a pass where each that is not accepted whole is decoded again;
        None where what was accepted stays in the cache.
        """
        return self._cache.most_pending if self._cache.most_back is None else None

    @property
    def n_pending(self) -> int:
        """Number of committed tokens that the next pass decodes again in front of the root."""
        n_waiting = max(len(self.tokens) - 1, 0) - self.n_cached
        return n_waiting - self._n_alone(n_waiting)

    @property
    def has_read_prompt(self) -> bool:
        """Whether the cache holds all of the prompt but what the first pass decodes."""
        return self._whole(len(self.tokens) - 1 - self.n_cached) == 0

    @property
    def has_states(self) -> bool:
        """Whether a head can draft, for which it needs the states of all tokens before the root."""
        return self.states is None or len(self.states.tokens) >= len(self.tokens) - 1

    def room(self) -> int:
        """Most nodes, root included, of the next tree, given the cells, batch and rows of logits that are left.

        The batch always has room for a root, as fewer tokens are pending than the last tree had nodes, or than are
        decoded in a pass of their own.
        """
        config, n_pending, most_back = self.context.config, self.n_pending, self._cache.most_back
        n_before = max(len(self.tokens) - 1, 0) - n_pending
        most = min(config.n_ctx - n_before, config.n_batch)
        largest = self.padding.largest(most if most_back is None else min(most, n_pending + 1 + most_back))
        return min(largest - n_pending, self.padding.largest(config.n_outputs))

    def can_pad(self, sizes: PassSizes) -> bool:
        """Whether passes can be padded to these sizes: what is added must be taken back after each."""
        most_back = self._cache.most_back
        return most_back is None or sizes.least - 1 <= most_back

    def pass_size(self, tree: TokenTree) -> int:
        """Tokens of the next pass over `tree`: pending ones and padding are included."""
        return self.padding.padded(self.n_pending + len(tree))

    def set_prompt(self, tokens: list[int], interrupted: Callable[[], bool] = lambda: False) -> int:
        """Make `tokens` the committed text and decode all but the last, reusing the prefix that the cache shares.

        Whatever interrupted a pass or a commit before, the cache is right afterwards.
        Before each pass `interrupted` is called; when it returns true decoding ends early, and `n_cached` says how far
        it came. Returns the number of tokens that were to be decoded. Raises ValueError for no tokens,
        ContextFullError if they do not fit.
        """
        if not tokens:
            raise ValueError("an empty prompt")
        end = len(tokens) - 1
        shared = min(common_prefix(self.tokens, tokens), end)
        goes_on = shared >= len(self.tokens) - 1
        kept = min(shared, self.n_cached)
        # The cache holds at least what is noted as cached, in this moment too: Ctrl-C may come between any two lines.
        self.n_cached = kept
        self.tokens = list(tokens)
        self.n_cached = kept = self._cache.take_back(kept) if goes_on else self._cache.turn_back(kept)
        self._count_sequences()
        # Shared tokens that are still pending are decoded first, on their own. After plain decoding the cache would
        # hold them already, so new text is cut into the same chunks whichever plan wrote the text before it.
        self._decode_committed(shared, self._largest_pass, interrupted)
        tail = self._cache.prompt_tail
        if tail is not None and end - tail > shared:
            self._decode_committed(end - tail, self._prompt_call(), interrupted)
            self._cache.keep_prompt(self.n_cached)
        self._decode_committed(end, self._prompt_call(), interrupted)
        return end - kept

    def hold(self) -> None:
        """Let `drop_tree` come back to what is cached now, without decoding anything again, until the next prompt."""
        self._cache.keep_prompt(self.n_cached)
        self._cache.expect_back(self.n_cached)

    def wait_for(self, most: int) -> None:
        """Let at most `most` committed tokens wait in front of a pass where what was not accepted is decoded again."""
        if self._cache.most_pending is not None:
            self._cache.most_pending = most

    def _count_sequences(self) -> None:
        """Find the first sequences that hold what is cached, and empty all others."""
        lengths = self.context.sequence_lengths()[: self.max_leaves]
        holds = lengths == self.n_cached if self.n_cached else np.zeros(len(lengths), np.bool_)
        self._n_sequences = max(int(np.append(holds, False).argmin()), 1)
        for seq in np.flatnonzero(lengths[self._n_sequences :]).tolist():
            self.context.remove(self._n_sequences + seq, 0)
        self._n_needed = min(self._n_needed, self._n_sequences)

    def _prompt_call(self) -> int:
        """Tokens of a prompt that llama.cpp gets at once. They depend on the settings only, never on the plan."""
        config, multiple = self.context.config, self.padding.multiple
        # The last pass over a prompt is padded, for which a pass of any other size might have no room.
        prompt_pass = min(config.settings.prompt_pass, config.n_batch)
        n = max(prompt_pass // multiple * multiple, self.padding.least)
        return config.n_call if n == config.n_batch else n

    def _decode_committed(self, end: int, largest: int, interrupted: Callable[[], bool]) -> None:
        config, last_seq = self.context.config, self._n_sequences - 1
        if end > config.n_ctx:
            raise ContextFullError(f"{end} tokens do not fit the context of {config.n_ctx}; give a larger --ctx-size")
        while self.n_cached < end and not interrupted():
            n = min(largest, end - self.n_cached)
            n = n if self._cache.drops_padding else self._whole(n)
            if n == 0:
                break
            chunk = self.tokens[self.n_cached : self.n_cached + n]
            batch = committed_tokens(chunk, self.n_cached, self._n_sequences, n_outputs=0)
            after = self.n_cached + n
            # Only the last of the passes that llama.cpp makes of a chunk is smaller than the others.
            whole = n // config.n_batch * config.n_batch
            rest = n - whole
            size = whole + self.padding.padded(rest) if whole and rest else self.padding.padded(n)
            self.context.decode(batch.padded(size, last_seq, after))
            if self.states:
                self.states.note(self.n_cached, chunk, np.arange(n))
            self.n_cached = self._cache.take_back(after)

    def _whole(self, n: int) -> int:
        """The most of `n` committed tokens that a call can decode without padding. They may be more than the largest
        size, as those of a prompt are.
        """
        if self._cache.drops_padding:
            return max(n, 0)
        n = n // self.padding.multiple * self.padding.multiple
        rest = n % self.context.config.n_batch
        n -= rest if rest < self.padding.least else 0
        return max(n, 0)

    def _n_alone(self, n_waiting: int) -> int:
        """How many of the committed tokens that wait for a pass are decoded in passes of their own before the next."""
        most = self._cache.most_pending
        if most is not None and self.padding.most is not None:
            most = min(most, self.padding.most // 2)  # the other half is for the tree
        if most is None or n_waiting <= most:
            return 0
        rest = n_waiting % self._largest_pass
        return n_waiting - rest + self._whole(rest)

    @property
    def _largest_pass(self) -> int:
        """Tokens of the largest pass that is of the class."""
        return self.padding.largest(self.context.config.n_batch)

    def score(self, tree: TokenTree) -> Logits:
        """One pass over the pending tokens and `tree`, whose root must be the last committed token.

        Returns float32[len(tree), n_vocab]; row i predicts the token after node i. It is a view that the next pass
        overwrites. Raises ContextFullError if the tree has more than `room()` nodes.
        """
        if tree.tokens[ROOT] != self.tokens[-1] or self.n_cached >= len(self.tokens):
            raise ValueError("the root is not the pending last token")
        if len(tree) > self.room():
            raise ContextFullError(f"a tree of {len(tree)} nodes does not fit; there is room for {self.room()}")
        if tree.n_leaves > self.max_leaves:
            raise ValueError(f"a tree of {tree.n_leaves} leaf paths; a pass checks {self.max_leaves}")
        n_alone = self._n_alone(len(self.tokens) - 1 - self.n_cached)
        if n_alone:
            self._decode_committed(self.n_cached + n_alone, self._largest_pass, interrupted=lambda: False)
        self._provide_sequences(tree.n_leaves)
        n_before = self.n_pending
        root_position = len(self.tokens) - 1
        # Committed tokens, the root included, are on every sequence that is in use, so that these stay equally long.
        n_seq = tree.leaf_counts.copy()
        n_seq[ROOT] = self._n_sequences
        before = np.asarray(self.tokens[self.n_cached : -1], np.int32)
        batch = Batch(
            tokens=np.concatenate([before, tree.tokens]),
            positions=np.concatenate(
                [np.arange(self.n_cached, root_position, dtype=np.int32), root_position + tree.depths]
            ),
            first_seq=np.concatenate([np.zeros(n_before, np.int32), tree.first_leaves]),
            n_seq=np.concatenate([np.full(n_before, self._n_sequences, np.int32), n_seq]),
            outputs=np.arange(n_before + len(tree)) >= n_before,
        )
        # Padding continues the last sequence. If the tree has a path on it, that is the path of its last node.
        depth = int(tree.depths[-1]) if tree.n_leaves == self._n_sequences else 0
        batch = batch.padded(self.pass_size(tree), self._n_sequences - 1, root_position + depth + 1)
        # Further rows are those of padding, and if that is too little, of pending tokens.
        n_rows = self.padding.padded(len(tree))
        first_row = min(n_before, len(batch) - n_rows)
        batch.outputs[first_row : first_row + n_rows] = True
        self._n_before = n_before
        if len(batch) > n_before + 1:
            self._cache.expect_back(self.n_cached)
        return self.context.decode(batch)[n_before - first_row :][: len(tree)]

    def _provide_sequences(self, n_leaves: int) -> None:
        """Let at least `n_leaves` sequences hold what is cached, and not many more than recent trees needed."""
        self._n_needed = max(self._n_needed, n_leaves)
        self._n_passes += 1
        if n_leaves <= self._n_sequences and self._n_passes < _KEPT_PASSES:
            return
        for seq in range(self._n_needed, self._n_sequences):
            self.context.remove(seq, 0)
        for seq in range(self._n_sequences, self._n_needed):
            self.context.copy(0, seq, 0, self.n_cached)
        self._n_sequences, self._n_needed, self._n_passes = self._n_needed, n_leaves, 0

    def commit(self, tree: TokenTree, path: list[int], next_token: int) -> None:
        """Commit the accepted `path` (node indices, root first) of the tree scored last, and then `next_token`."""
        root_position = len(self.tokens) - 1
        kept = n_in_order(path)
        end = root_position + kept
        if self.states:
            # Pending tokens were in no pass before, where a prompt's last ones wait for a pass of a whole class.
            first = root_position - self._n_before
            tokens = [*self.tokens[first:root_position], *tree.tokens[path].tolist()]
            self.states.note(first, tokens, np.append(np.arange(self._n_before), self._n_before + np.array(path)))
        n_cached = self._cache.take_back(end)
        if kept > 1:
            self._share_first_path(root_position + 1, end)
        self.n_cached = n_cached
        self.tokens.extend(int(tree.tokens[node]) for node in path[1:])
        self.tokens.append(next_token)

    def _share_first_path(self, start: int, end: int) -> None:
        """Let every sequence in use share the cells of sequence 0 at start .. end - 1 instead of its own."""
        for seq in range(1, self._n_sequences):
            self.context.remove(seq, start)
            self.context.copy(0, seq, start, end)

    def held(self) -> HeldText:
        """What the cache holds, for a look. The text is the present one, which changes."""
        return HeldText(self.tokens, self.n_cached, self._cache.drops_padding, self._cache.prompt)

    def save(self) -> SavedText | None:
        """A copy of what the cache holds, to be called between passes; None after a pass that failed.

        Raises LlamaError if llama.cpp fails.
        """
        if self.context.n_last_pass is None or int(self.context.sequence_lengths()[0]) != self.n_cached:
            return None
        held = replace(self.held(), tokens=list(self.tokens))
        return SavedText(held, self.context.sequence_state(0), self.states.save() if self.states else None)

    def restore(self, saved: SavedText) -> None:
        """Hold what was saved, instead of what is held now. The context must be the one that it was saved of.

        Raises LlamaError if llama.cpp fails; then nothing is held.
        """
        self.reset()
        try:
            self.context.set_sequence_state(0, saved.state)
        except BaseException:
            self.reset()
            raise
        if self.states and saved.for_head:
            self.states.restore(saved.for_head)
        self._cache.restored(saved.held.prompt)
        self.tokens, self.n_cached = list(saved.held.tokens), saved.held.n_cached

    def drop_tree(self) -> None:
        """Remove from the cache what the last `score` wrote, without committing anything."""
        self.n_cached = self._cache.take_back(self.n_cached)

    def reset(self) -> None:
        """Forget all text and empty the cache."""
        self.tokens = []
        self.n_cached = 0
        self._cache.clear()
        self._n_sequences = self._n_needed = 1
