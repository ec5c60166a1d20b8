"""Measures up to which size a pass gives a token the same logits, bit for bit, as a pass over that token alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from specrun.llama.target import TargetContext
from specrun.speculation.tree import TokenTree


def exact_up_to(
    target: TargetContext,
    tokens: Sequence[int],
    sizes: Sequence[int],
    ctx: int,
    n_compared: int,
    over: Callable[[], bool] = lambda: False,
) -> int:
    """The largest of `sizes` (ascending) such that passes of it and all smaller sizes equal passes over one token.

    1 if not even the smallest size above 1 does. Compares the first `n_compared` rows of logits after `ctx` tokens of
    text, which is made by repeating `tokens`. over: returns true when the time is up; then only the rows computed so
    far, at least two, are compared.
    """
    text = [tokens[i % len(tokens)] for i in range(ctx + 1 + n_compared)]
    target.set_prompt(text[: ctx + 1])
    rows = []
    for i in range(n_compared):
        if i >= 2 and over():
            break
        rows.append(target.score(TokenTree.root_only(text[ctx + i])).copy()[0])
        target.commit(TokenTree.root_only(text[ctx + i]), [0], text[(ctx + i + 1) % len(text)])
    exact = 1
    for size in sizes:
        if size < 2:
            continue
        target.set_prompt(text[: ctx + 1])
        following = [text[(ctx + i) % len(text)] for i in range(size)]
        together = target.score(TokenTree.chain(following))
        n = min(size, len(rows))
        same = all(np.array_equal(together[i].view(np.uint32), rows[i].view(np.uint32)) for i in range(n))
        target.drop_tree()
        if not same:
            break
        exact = size
    return exact
