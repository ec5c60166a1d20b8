"""What target and draft expect after every token of a given text: as few passes as its length allows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specrun.llama.batch import committed_tokens
from specrun.llama.context import ALL_SEQUENCES, LlamaContext, Logits
from specrun.llama.draft import DraftContext
from specrun.llama.target import TargetContext


def rows_along(target: TargetContext, draft: DraftContext, tokens: Sequence[int]) -> Iterator[tuple[Logits, Logits]]:
    """Pairs of float32[n, n_vocab], the target's logits after `n` tokens of the text and the draft's, from its first to
    its last token. Views that the next pair overwrites. Both caches are emptied before and after.
    """
    target.reset()
    draft.reset()
    size = min(_largest_pass(target.context), _largest_pass(draft.context))
    known = [token if token < draft.n_vocab else 0 for token in tokens]
    try:
        for start in range(0, len(tokens), size):
            rows = [
                context.decode(committed_tokens(text[start : start + size], start, context.config.n_seq_max, size))
                for context, text in ((target.context, list(tokens)), (draft.context, known))
            ]
            yield rows[0], rows[1][:, : draft.n_vocab]
    finally:
        for context in (target.context, draft.context):
            context.remove(ALL_SEQUENCES, 0)


def _largest_pass(context: LlamaContext) -> int:
    return min(context.config.n_batch, context.config.n_outputs)
