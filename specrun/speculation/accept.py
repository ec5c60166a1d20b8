"""Accepting a path of a token tree: by sample and match, or by a rule of a paper.

Sample and match is exact by construction. At every visited node the target's own next token is sampled, as in plain
decoding. If a child holds that token, the walk goes on there; if none does, the token is committed and the walk ends.
So every pass commits at least one token, and the draft cannot change what is written, only how many tokens a pass
commits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specrun.sampling import Sampler
from specrun.speculation.drafter import Draft
from specrun.speculation.tree import ROOT, TokenTree

SampleToken = Callable[[NDArray[np.float32], int, Sequence[int]], int]
"""(logits: float32[n_vocab], position, recent tokens) -> token, as `Sampler.sample`."""


@dataclass(frozen=True)
class Accepted:
    """What a pass commits: tokens[:-1] are the accepted drafted tokens, tokens[-1] is the target's own."""

    path: list[int]  # accepted node indices, root first
    tokens: list[int]  # committed tokens; tokens[i] was chosen at path[i]

    def first(self, n_tokens: int) -> Accepted:
        """The part that commits the first `n_tokens` tokens only."""
        return Accepted(self.path[:n_tokens], self.tokens[:n_tokens])


def sample_and_match(
    tree: TokenTree, rows: NDArray[np.float32], sample: SampleToken, position: int, recent: Sequence[int]
) -> Accepted:
    """Walk the tree with the target's own samples.

    rows: float32[len(tree), n_vocab], the target's logits after each node. position: of the token after the root.
    recent: what `Sampler.recent` returns for the text up to and with the root.
    """
    if len(tree) == 1:  # a plain pass may take less than a millisecond
        return Accepted([ROOT], [sample(rows[ROOT], position, recent)])
    path = [ROOT]
    tokens: list[int] = []
    seen = list(recent)
    while True:
        token = sample(rows[path[-1]], position + len(tokens), seen)
        tokens.append(token)
        seen.append(token)
        if (child := tree.child_with_token(path[-1], token)) is None:
            return Accepted(path, tokens)
        path.append(child)


AcceptanceRule = Callable[[Draft, NDArray[np.float32], Sampler, Sequence[int]], Accepted]
"""Compares the target's distribution with the draft's: (draft, rows, sampler, tokens) -> what is accepted, as `accept`.

The rules are in `specrun.speculation.papers`."""


def accept(
    rule: AcceptanceRule | None, draft: Draft, rows: NDArray[np.float32], sampler: Sampler, tokens: Sequence[int]
) -> Accepted:
    """The accepted path of the draft's tree, and the tokens that it commits.

    rule: the rule at temperatures above 0; None is sample and match. Greedily all rules do the same.
    rows: float32[len(tree), n_vocab], the target's logits after each node.
    tokens: all committed text, whose last token is the root.
    """
    if rule is None or sampler.parameters.temperature == 0:
        return sample_and_match(draft.tree, rows, sampler.sample, len(tokens), sampler.recent(tokens))
    return rule(draft, rows, sampler, tokens)
