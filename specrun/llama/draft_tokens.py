"""The target's text as a draft reads it, and the draft's logits as rows of the target's vocabulary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from specrun.catalog.pairs import NOT_SHARED, SharedTokens
from specrun.llama.batch import committed_tokens, common_prefix, readable
from specrun.llama.context import LlamaContext, Logits
from specrun.speculation.drafter import DraftNode


def rows_along(context: LlamaContext, tokens: Sequence[int], skip: int) -> Iterator[Logits]:
    """Yield float32[n_vocab], the logits after each token of the text but the first `skip`; the pass after the next
    overwrites a row.

    The cache must be empty, and holds the text afterwards.
    """
    config = context.config
    size = min(config.n_batch, config.n_outputs)
    # A recurrent state belongs to one sequence, and where there is no attention, llama.cpp shares no token either.
    n_sequences = 1 if context.model.is_recurrent else config.n_seq_max
    for start in range(0, len(tokens), size):
        part = list(tokens[start : start + size])
        yield from context.decode(committed_tokens(part, start, n_sequences, len(part)))[max(skip - start, 0) :]


class SameTokens:
    """The tokens of a draft with the target's tokenizer.

    n_vocab: number of tokens that both have, as one vocabulary may be padded further. Rows of logits end there, and a
        committed token that the draft lacks is read as token 0, which costs accepted tokens only.
    """

    def __init__(self, n_vocab: int) -> None:
        self.n_vocab = n_vocab

    def read(self, text: Sequence[int]) -> Sequence[int]:
        """The text as the draft reads it: at least one token."""
        return text if max(text, default=0) < self.n_vocab else readable(text, self.n_vocab)

    def read_nodes(self, nodes: Sequence[DraftNode]) -> Sequence[DraftNode]:
        """Nodes as the draft reads them, each as one token."""
        if max(node.token for node in nodes) < self.n_vocab:
            return nodes
        return [node if node.token < self.n_vocab else node._replace(token=0) for node in nodes]

    def rows(self, rows: Logits) -> Logits:
        """float32[n, n_vocab], by the target's tokens, from the draft's rows. The next call may overwrite them."""
        return rows[:, : self.n_vocab]

    def _ends(self, text: Sequence[int]) -> Sequence[int]:
        """For each token of the text, how many tokens the draft has read at its end."""
        return range(1, len(text) + 1)

    def rows_along(self, context: LlamaContext, text: Sequence[int], skip: int) -> Iterator[Logits]:
        """As `DraftContext.rows_along`, with a context that is empty before."""
        read, wanted = self.read(text), Counter(self._ends(text)[skip:])
        first = min(wanted, default=len(read))
        for end, row in enumerate(rows_along(context, read, first - 1), start=first):
            for _ in range(wanted[end]):
                yield self.rows(row[None])[0]


class OtherTokens(SameTokens):
    """The tokens of a draft with another tokenizer, for one text, which goes on.

    n_most: tokens that the draft's context takes. Of a text with more, the draft reads the last half of that or more.

    A node with a token that the draft lacks is read as the last of the draft's tokens in it, which costs accepted
    tokens only. What the draft lacks has minus infinity in a row.
    """

    def __init__(self, shared: SharedTokens, n_most: int) -> None:
        super().__init__(len(shared.ids))
        self._shared = shared
        self._n_most = n_most
        self._targets = np.flatnonzero(shared.ids != NOT_SHARED)
        self._drafts = shared.ids[self._targets]
        self._text: list[int] = []
        self._read: list[int] = []  # the whole text in the draft's tokens
        self._read_ends: list[int] = []  # for each token of the text, how many of these it ends with
        self._rows: Logits = np.empty((0, self.n_vocab), np.float32)

    def read(self, text: Sequence[int]) -> Sequence[int]:
        same = min(common_prefix(self._text, list(text)), len(self._read_ends))  # Ctrl-C may have come between both
        del self._text[same:], self._read_ends[same:], self._read[self._read_ends[-1] if same else 0 :]
        for token in text[same:]:
            is_begin = not self._text and token == self._shared.bos
            self._read += self._shared.begin if not self._text else ()
            self._read += () if is_begin else self._shared.read(token)
            self._text.append(token)
            self._read_ends.append(len(self._read))
        return self._read[self._n_left_out :] or [0]

    @property
    def _n_left_out(self) -> int:
        """Tokens at the beginning that the draft does not read. They become more in large steps, because it then has to
        read all others again.
        """
        half = max(self._n_most // 2, 1)
        return max(-(-(len(self._read) - self._n_most) // half) * half, 0)

    def read_nodes(self, nodes: Sequence[DraftNode]) -> Sequence[DraftNode]:
        return [node._replace(token=self._shared.read(node.token)[-1]) for node in nodes]

    def rows(self, rows: Logits) -> Logits:
        if len(rows) > len(self._rows):
            self._rows = np.full((len(rows), self.n_vocab), -np.inf, np.float32)
        for whole, row in zip(self._rows, rows, strict=False):
            whole[self._targets] = row[self._drafts]
        return self._rows[: len(rows)]

    def _ends(self, text: Sequence[int]) -> Sequence[int]:
        return [max(end - self._n_left_out, 1) for end in self._read_ends[: len(text)]]
