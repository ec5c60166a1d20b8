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
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from specrun.errors import ContextFullError
from specrun.llama.batch import Batch, committed_tokens
from specrun.llama.context import ALL_SEQUENCES, LlamaContext, Logits
from specrun.llama.prefix import common_prefix
from specrun.speculation.planning.pass_sizes import ANY_SIZE, PassSizes
from specrun.speculation.tree import ROOT, TokenTree, n_in_order

_KEPT_PASSES = 32  # after so many passes sequences that none of their trees needed are emptied


class TargetContext:
    """The committed text of one generation and the target's KV cache of it.

    tokens: all committed text; its last token is the root of the next tree.
    n_cached: number of leading tokens that the cache holds; between passes it holds nothing else.
    padding: the sizes that passes are padded to. The passes over new text of a prompt are the same with every plan, so
        they may be larger than the largest of these sizes. The context needs room for the padding.
    """

    def __init__(self, context: LlamaContext) -> None:
        self.context = context
        self.tokens: list[int] = []
        self.n_cached = 0
        self.padding: PassSizes = ANY_SIZE
        self._n_sequences = 1  # the first ones, which hold what is cached; the others are empty
        self._n_needed = 1  # most leaves of a tree since the number of sequences was last reconsidered
        self._n_passes = 0  # since then

    @property
    def n_vocab(self) -> int:
        return self.context.model.n_vocab

    @property
    def max_leaves(self) -> int:
        """Most leaf paths of a tree."""
        return self.context.config.n_seq_max

    @property
    def n_pending(self) -> int:
        """Number of committed tokens that the next pass decodes again in front of the root."""
        return len(self.tokens) - 1 - self.n_cached

    def room(self) -> int:
        """Most nodes, root included, of the next tree, given the cells, batch and rows of logits that are left.

        The batch always has room for a root, as fewer tokens are pending than the last tree had nodes.
        """
        config = self.context.config
        n_pending = max(len(self.tokens) - self.n_cached, 1)
        largest = self.padding.largest(min(config.n_ctx - self.n_cached, config.n_batch))
        return min(largest - n_pending + 1, self.padding.largest(config.n_outputs))

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
        kept = min(shared, self.n_cached)
        if kept < self.n_cached and not self.context.model.can_hold_tree:
            kept = 0  # a recurrent state cannot be rolled back partly
        # The cache holds at least what is noted as cached, in this moment too: Ctrl-C may come between any two lines.
        self.n_cached = kept
        self.tokens = list(tokens)
        self.context.remove(ALL_SEQUENCES, kept)
        self._count_sequences()
        # Shared tokens that are still pending are decoded first, on their own. After plain decoding the cache would
        # hold them already, so new text is cut into the same chunks whichever plan wrote the text before it.
        self._decode_committed(shared, self.padding.largest(self.context.config.n_batch), interrupted)
        self._decode_committed(end, self._prompt_call(), interrupted)
        return end - kept

    def _count_sequences(self) -> None:
        """Find the first sequences that hold what is cached, and empty all others."""
        lengths = self.context.sequence_lengths()
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
            chunk = self.tokens[self.n_cached : min(self.n_cached + largest, end)]
            batch = committed_tokens(chunk, self.n_cached, self._n_sequences, n_outputs=0)
            after = self.n_cached + len(chunk)
            # Only the last of the passes that llama.cpp makes of a chunk is smaller than the others.
            whole = len(chunk) // config.n_batch * config.n_batch
            rest = len(chunk) - whole
            size = whole + self.padding.padded(rest) if whole and rest else self.padding.padded(len(chunk))
            self.context.decode(batch.padded(size, last_seq, after))
            self.n_cached = after
            self.context.remove(last_seq, after)

    def score(self, tree: TokenTree) -> Logits:
        """One pass over the pending tokens and `tree`, whose root must be the last committed token.

        Returns float32[len(tree), n_vocab]; row i predicts the token after node i. It is a view that the next pass
        overwrites. Raises ContextFullError if the tree has more than `room()` nodes.
        """
        if tree.tokens[ROOT] != self.tokens[-1] or self.n_cached >= len(self.tokens):
            raise ValueError("the root is not the pending last token")
        if len(tree) > self.room():
            raise ContextFullError(f"a tree of {len(tree)} nodes does not fit; there is room for {self.room()}")
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
        self.context.remove(ALL_SEQUENCES, end)
        if kept > 1:
            self._share_first_path(root_position + 1, end)
        self.n_cached = end
        self.tokens.extend(int(tree.tokens[node]) for node in path[1:])
        self.tokens.append(next_token)

    def _share_first_path(self, start: int, end: int) -> None:
        """Let every sequence in use share the cells of sequence 0 at start .. end - 1 instead of its own."""
        for seq in range(1, self._n_sequences):
            self.context.remove(seq, start)
            self.context.copy(0, seq, start, end)

    def drop_tree(self) -> None:
        """Remove from the cache what the last `score` wrote, without committing anything."""
        self.context.remove(ALL_SEQUENCES, self.n_cached)

    def reset(self) -> None:
        """Forget all text and empty the cache."""
        self.tokens = []
        self.n_cached = 0
        self.context.remove(ALL_SEQUENCES, 0)
        self._n_sequences = self._n_needed = 1
