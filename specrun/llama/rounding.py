"""How much the size of passes moves a target's logits for one known text.

That tells a token that batched arithmetic decided otherwise from a wrong token (docs/trust.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from specrun.llama.context import Logits
from specrun.llama.invariance import tree_along, true_path
from specrun.llama.target import TargetContext
from specrun.speculation.tree import TokenTree

PLAIN = 1  # tokens of a pass of plain decoding


def rows_behind(target: TargetContext, prompt: Sequence[int], written: Sequence[int], size: int, n_rows: int) -> Logits:
    """float32[n_rows, n_vocab]: the logits that predict the last `n_rows` tokens of `written`.

    The written tokens are scored and committed in passes of `size` tokens, so that the cache, too, holds what such
    passes leave: passes over one token as in plain decoding, larger ones over chains and trees in turn. What the cache
    already holds of the prompt is not read again, so it must have been read as a prompt. n_rows: at most the written
    tokens.
    """
    text = [*prompt, *written]
    # Passes that go beyond the end still have their size: they are filled with tokens that were written before.
    filled = [*text, *(written[i % len(written)] for i in range(size))]
    rows = np.empty((n_rows, target.n_vocab), np.float32)
    first = len(text) - n_rows  # the token that the first row predicts
    target.set_prompt(list(prompt))
    for n_passes in range(len(written)):
        root = len(target.tokens) - 1
        if root >= len(text) - 1:
            break
        count = max(min(size - target.n_pending, target.room()), 1)
        # A tree has a second leaf path, which a context that was made for chains cannot hold.
        is_chain = n_passes % 2 == 0 or target.max_leaves < 2
        tree = TokenTree.root_only(text[root]) if count == 1 else tree_along(filled[root : root + count], is_chain)
        path = true_path(tree)[: len(text) - 1 - root]
        found = target.score(tree)[path]
        begin = max(first - root - 1, 0)  # rows before it are not wanted
        if begin < len(path):
            at = root + 1 + begin - first
            rows[at : at + len(path) - begin] = found[begin:]
        target.commit(tree, path, text[root + len(path)])
    return rows


def rows_of_sizes(
    target: TargetContext, prompt: Sequence[int], written: Sequence[int], n_rows: int, sizes: Iterable[int]
) -> Iterator[Logits]:
    """What `rows_behind` gives for passes of each size, but that of the written tokens only the last 2 `n_rows` are
    decoded in such passes, and those before count as the prompt.
    """
    begin = max(len(written) - 2 * n_rows, 0)
    for size in sizes:
        yield rows_behind(target, [*prompt, *written[:begin]], written[begin:], size, n_rows)
