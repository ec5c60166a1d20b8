"""Logits of target and draft after every token of a given text, in as few passes as its length allows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specrun.llama.batch import committed_tokens
from specrun.llama.context import LlamaContext, Logits
from specrun.llama.draft import DraftContext
from specrun.llama.target import TargetContext


def rows_along(target: TargetContext, draft: DraftContext, tokens: Sequence[int]) -> Iterator[tuple[Logits, Logits]]:
    """Yield (target's logits, draft's logits), each float32[n, n_vocab], for n tokens of the text at a time.

    Row i holds the logits after token i. The rows are views that the next pair overwrites. Both caches are emptied
    before and afterwards.
    """
    target.reset()
    draft.reset()
    size = min(_largest_pass(target.context), _largest_pass(draft.context))
    texts = (target.context, list(tokens)), (draft.context, draft.readable(tokens))
    try:
        for start in range(0, len(tokens), size):
            rows = [
                context.decode(committed_tokens(text[start : start + size], start, context.config.n_seq_max, size))
                for context, text in texts
            ]
            yield rows[0], rows[1][:, : draft.n_vocab]
    finally:
        target.reset()
        draft.reset()


def _largest_pass(context: LlamaContext) -> int:
    return min(context.config.n_batch, context.config.n_outputs)
