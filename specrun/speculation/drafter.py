"""What drafts: the interfaces of drafters and draft models, a draft, and the limits of its tree."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from specrun.sampling import Candidates
from specrun.speculation.tree import TokenTree

Logits = NDArray[np.float32]


class DraftNode(NamedTuple):
    """A node that a draft pass expands. Ids are places in the order of a tree's growth; 0 is the root."""

    id: int
    parent: int
    token: int


class DraftModel(Protocol):
    """A draft model with a cache that can hold the tree it grows."""

    n_vocab: int

    def start(self, tokens: Sequence[int]) -> Logits:
        """Bring the cache to `tokens`, all committed text, whose last token is the root of the next tree.

        Returns float32[n_vocab], the logits after the root.
        """
        ...

    def expandable(self, parents: Sequence[int], width: int) -> Sequence[int]:
        """Places, ascending, of at most `width` nodes that one pass can expand together.

        parents: the parent of every node that may still be expanded, best first. No other node that was expanded can
        have a further child, so that the cache may drop what it keeps for one.
        """
        ...

    def expand(self, nodes: Sequence[DraftNode]) -> Logits:
        """float32[len(nodes), n_vocab]: the logits after each of `nodes`, from one pass. The next pass overwrites them.

        The parent of each was expanded in an earlier pass, or comes before it in `nodes` and has one child there.
        """
        ...


@dataclass(frozen=True)
class DraftLimits:
    """The limits of one tree."""

    budget: int  # most nodes, root included
    depth: int  # most drafted tokens on a path
    width: int  # most nodes that one draft pass expands
    leaves: int  # most leaf paths
    pending: int = 0  # committed tokens that the target decodes again before the tree


@dataclass(frozen=True)
class Draft:
    """A token tree, and what was asked of the draft model for it.

    widths: the nodes of each draft pass; empty where these passes are not to be timed.
    offered: the draft's candidates for the token after the root. They count for the calibration even if no tree is
        worth a larger pass. None if the draft was not asked.
    """

    tree: TokenTree
    widths: tuple[int, ...] = ()
    offered: Candidates | None = None

    def limited(self, max_nodes: int, max_leaves: int) -> Draft:
        """The same with the likeliest sub-tree of at most so many nodes, root included, and leaf paths."""
        return replace(self, tree=self.tree.limited(max_nodes, max_leaves))


# The nodes of the next draft pass; the root alone stands for the committed text. The draft comes at the end.
Growing = Generator[Sequence[DraftNode], None, Draft]


class Drafter:
    """Proposes token trees. It says before each draft pass what the pass is for, so that several texts can share it."""

    def grow(self, tokens: Sequence[int], limits: DraftLimits) -> Growing:
        """As `draft`, but yields the nodes of each draft pass, before it asks its source for their candidates."""
        raise NotImplementedError

    def draft(self, tokens: Sequence[int], limits: DraftLimits) -> Draft:
        """A tree for what follows the committed text `tokens`, whose last token is the root, within `limits`."""
        growing = self.grow(tokens, limits)
        while True:
            try:
                next(growing)
            except StopIteration as end:
                draft: Draft = end.value
                return draft
