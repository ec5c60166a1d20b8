"""Sizes of passes that give a token the same bits, whichever other tokens share the pass (docs/exactness.md)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from specrun.display_text import counted

_TOKENS_PER_DOUBLING = 0.62  # committed tokens that a tree of twice the nodes adds (docs/benchmarks/growth.md)
# Tokens of the smallest size and of the multiple of a class, at most: contexts have room for one less as padding.
MOST_PADDED = 64


@dataclass(frozen=True)
class PassSizes:
    """A class of sizes: the multiples of `multiple` from `least` to `most` tokens.

    A matrix kernel computes a row in the same way in passes of all these sizes. So a token's logits are the same bits
    in all passes if each is padded to a size of one class. Raises ValueError for impossible numbers.

    in_order: whether this holds only for tokens that follow their predecessors in consecutive cells of the KV cache.
        GPUs add up attention in groups of cells, so a token after a rejected branch gets other last bits. Then only
        a tree's nodes in consecutive cells and the token after them may be committed.
    """

    least: int = 1  # tokens of the smallest pass; a multiple of `multiple`
    multiple: int = 1  # every size is a multiple of it
    most: int | None = None  # tokens of the largest pass; None for no bound
    in_order: bool = False

    def __post_init__(self) -> None:
        bounds = (self.least, self.least if self.most is None else self.most)
        if not 1 <= self.multiple <= bounds[0] <= bounds[1] or any(bound % self.multiple for bound in bounds):
            raise ValueError(f"no class of sizes: {self.least}, multiples of {self.multiple}, up to {self.most}")

    @classmethod
    def only(cls, size: int) -> PassSizes:
        """The class of a single size."""
        return cls(size, size, size)

    @property
    def is_single(self) -> bool:
        """Whether all passes have one size."""
        return self.least == self.most

    def padded(self, n: int) -> int:
        """The tokens of a padded pass over `n` tokens. Beyond `most` it is rounded up, and belongs to another class."""
        return max(self.least, -(-n // self.multiple) * self.multiple)

    def largest(self, limit: int) -> int:
        """The largest size up to `limit`; 0 if there is none."""
        limit = limit if self.most is None else min(limit, self.most)
        size = limit // self.multiple * self.multiple
        return size if size >= self.least else 0

    def has_room_for(self, n: int) -> bool:
        """Whether a pass over `n` tokens is of the class when padding has been added."""
        return self.padded(n) in self

    def __contains__(self, n: object) -> bool:
        return isinstance(n, int) and 0 < n == self.largest(n)

    def __str__(self) -> str:
        to = "" if self.is_single else " or more" if self.most is None else f" to {self.most}"
        multiples = f" in multiples of {self.multiple}" if self.multiple > 1 and not self.is_single else ""
        in_order = ", and only the first path of a tree is exact" if self.in_order else ""
        tokens = f"{self.least}{to} tokens" if to else counted(self.least, "token")
        return f"{tokens}{multiples}{in_order}"


ANY_SIZE = PassSizes()
PLAIN_ONLY = PassSizes.only(1)


def tokens_of(n: int) -> float:
    """Committed tokens to be expected of a tree of `n` nodes, with a draft of usual quality."""
    return 1 + _TOKENS_PER_DOUBLING * math.log2(n)


def best_rate(sizes: PassSizes, ms: Mapping[int, float]) -> float:
    """Tokens per millisecond of the fastest pass, with a draft of usual quality. ms: milliseconds of a pass by size."""
    return max((tokens_of(n) / of_pass for n, of_pass in ms.items() if n in sizes), default=0.0)
