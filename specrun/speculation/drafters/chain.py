"""A chain: the draft's own next token, again and again (Leviathan et al., 2211.17192; Chen et al., 2302.01318)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from specrun.sampling import NO_TOKEN, Sampler
from specrun.speculation.drafters.drafter import DraftLimits, DraftModel, DraftNode
from specrun.speculation.tree import ROOT, TokenTree

# Nobody asks how sure the draft was; each token is taken to be accepted that often.
_CHANCE = 0.7


class ChainDrafter:
    """Drafts a tree of one path, each token sampled from the draft with the target's sampler and noise."""

    def __init__(self, model: DraftModel, sampler: Sampler) -> None:
        self._model = model
        self._sampler = sampler

    def draft(self, tokens: Sequence[int], limits: DraftLimits) -> TokenTree:
        """A chain of at most `limits.depth` drafted tokens."""
        chain = [tokens[-1]]
        n_drafted = min(limits.depth, limits.budget - 1)
        recent = self._sampler.recent(tokens)
        logits = self._model.start(tokens)
        while True:
            token = self._sampler.sample(logits, len(tokens) + len(chain) - 1, recent)
            if token == NO_TOKEN:
                return _tree(chain)
            chain.append(token)
            recent.append(token)
            node = len(chain) - 1
            if node >= n_drafted or self._model.expandable([node - 1 if node > 1 else ROOT]) == 0:
                return _tree(chain)
            logits = self._model.expand([DraftNode(node, node - 1, chain[-1])])[0]


def _tree(chain: Sequence[int]) -> TokenTree:
    return TokenTree.chain(chain, [depth * math.log(_CHANCE) for depth in range(len(chain))])
