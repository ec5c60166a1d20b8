"""Sample and match: the acceptance rule that is exact by construction.

At every visited node the target's own next token is sampled, as plain decoding would; while a child holds that token,
go to it. The first token without a child is committed all the same, so every pass commits at least one token. No
property of the draft can change what is written, only how much of it comes from one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specrun.speculation.tree import ROOT, TokenTree

# (logits: float32[n_vocab], position, recent tokens) -> token
SampleToken = Callable[[NDArray[np.float32], int, Sequence[int]], int]


@dataclass(frozen=True)
class Accepted:
    """path: accepted node indices, root first. tokens: what is committed, one per path entry; tokens[i] was sampled
    at path[i], so tokens[:-1] are the drafted tokens that matched and tokens[-1] is the target's own.
    """

    path: list[int]
    tokens: list[int]

    def first(self, n_tokens: int) -> Accepted:
        """The part of it that commits only `n_tokens` tokens."""
        return Accepted(self.path[:n_tokens], self.tokens[:n_tokens])


def sample_and_match(
    tree: TokenTree, rows: NDArray[np.float32], sample: SampleToken, position: int, recent: Sequence[int]
) -> Accepted:
    """Walk the tree with the target's own samples.

    rows: float32[len(tree), n_vocab], the target's logits after each node. position: that of the token after the
    root. recent: the tokens up to and with the root that `sample` wants to see (for penalties).
    """
    path = [ROOT]
    tokens: list[int] = []
    seen = list(recent)
    while True:
        token = sample(rows[path[-1]], position + len(tokens), seen)
        tokens.append(token)
        seen.append(token)
        child = tree.child_with_token(path[-1], token)
        if child is None:
            return Accepted(path, tokens)
        path.append(child)
