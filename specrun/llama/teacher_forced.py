"""Logits after every token of a given text, in as few passes as its length allows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specrun.llama.batch import committed_tokens
from specrun.llama.context import LlamaContext, Logits


def rows_along(context: LlamaContext, tokens: Sequence[int]) -> Iterator[Logits]:
    """Yield float32[n_vocab], the logits after each token of the text; the pass after the next overwrites a row.

    The cache must be empty, and holds the text afterwards.
    """
    config = context.config
    size = min(config.n_batch, config.n_outputs)
    # A recurrent state belongs to one sequence, and where there is no attention, llama.cpp shares no token either.
    n_sequences = 1 if context.model.is_recurrent else config.n_seq_max
    for start in range(0, len(tokens), size):
        part = list(tokens[start : start + size])
        yield from context.decode(committed_tokens(part, start, n_sequences, len(part)))
