"""What a drafter is, and what it may ask of a draft model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specrun.speculation.tree import TokenTree

Logits = NDArray[np.float32]


@dataclass(frozen=True)
class DraftNode:
    """A node to expand: its own id, its parent's id (0 is the root) and its token."""

    id: int
    parent: int
    token: int


class DraftModel(Protocol):
    """A draft model with a cache that can hold the tree it grows."""

    @property
    def n_vocab(self) -> int: ...

    def start(self, tokens: Sequence[int]) -> Logits:
        """Take in the committed text; float32[n_vocab] logits after its last token, the root."""
        ...

    def expandable(self, parents: Sequence[int]) -> int:
        """How many children of these parents, in order, one pass can expand."""
        ...

    def expand(self, nodes: Sequence[DraftNode]) -> Logits:
        """float32[len(nodes), n_vocab]: one pass over nodes whose parents were expanded before, or come before
        them (one child of each at most).
        """
        ...


@dataclass(frozen=True)
class DraftLimits:
    """Bounds of one tree. budget: nodes, root included. depth: drafted tokens on a path. width: nodes that one draft
    pass expands. leaves: leaf paths. pending: committed tokens that the target decodes again in front of the tree.
    """

    budget: int
    depth: int
    width: int
    leaves: int
    pending: int = 0


class Drafter(Protocol):
    """Proposes a token tree for the text that follows the committed tokens."""

    def draft(self, tokens: Sequence[int], limits: DraftLimits) -> TokenTree:
        """A tree rooted at the last of `tokens`, within `limits`."""
        ...


class Guesses(Protocol):
    """What needs no draft model to guess."""

    def children(self, path: Sequence[int], count: int) -> list[tuple[int, float]]:
        """Tokens that could follow the committed text and `path`, with the chance of each, best first."""
        ...

    def behind(self, path: Sequence[int]) -> Guesses:
        """The same as they would be if `path` had been committed."""
        ...
