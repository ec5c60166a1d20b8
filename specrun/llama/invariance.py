"""Whether a token's logits are the same bits whatever the size of the pass that computes them."""

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
    """The largest of `sizes` (ascending) up to which passes give the bits that passes over one token give.

    Compares the first `n_compared` rows behind `ctx` tokens. 1 if not even a pass over two tokens agrees. `over` is
    asked between passes over one token, and bounds how many are compared (two at least).
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
        found = target.score(TokenTree.chain(following))
        n = min(size, len(rows))
        same = all(np.array_equal(found[i].view(np.uint32), rows[i].view(np.uint32)) for i in range(n))
        target.drop_tree()
        if not same:
            break
        exact = size
    return exact
