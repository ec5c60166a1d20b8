"""The shapes of trees whose tokens are drawn at random, within any budget and depth.

`forked`: paths that part at one node. SpecInfer (arXiv 2305.09781, section 6.1) expands by <1,1,3,1,1,1,1,1>, and
compares widths of 1 to 5 in place of the 3. SpecTr (arXiv 2310.15141) draws K paths of L tokens that part at the root,
up to K = 8 and L = 8, which a budget of 65 gives.
`branching`: every node of a level has equally many children, as in RSD-C (arXiv 2402.14160), for example 2-2-2. The
code of multi-candidate sampling (arXiv 2401.06706; NJUNLP/MCSD) runs 4-2-2: a budget of 29 and a depth of 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from specrun.speculation.shape import MAX_LEAVES, TreeShape


def forked(budget: int, depth: int, stem: int = 0) -> TreeShape:
    """As many paths as fit that have their first `stem` tokens in common.

    They are as deep as `depth` allows, but shorter where otherwise not even two would fit. budget: at least 2.
    """
    stem = max(min(stem, depth - 1, budget - 3), 0)
    room = budget - 1 - stem
    length = min(depth - stem, max(room // 2, 1))
    return TreeShape.branching([*[1] * stem, min(room // length, MAX_LEAVES), *[1] * (length - 1)])


def branching(budget: int, depth: int) -> TreeShape:
    """Two children for every node on as many levels as fit; what is left of the budget adds levels of one child each.

    Where it does not reach for such a level, or `depth` forbids it, levels get more children, the first level first.
    """
    counts: list[int] = []
    for n in (2, 1):
        while len(counts) < depth and _fits([*counts, n], budget):
            counts.append(n)
    for level in range(len(counts)):
        while _fits(wider := [*counts[:level], counts[level] + 1, *counts[level + 1 :]], budget):
            counts = wider
    return TreeShape.branching(counts)


def _fits(counts: Sequence[int], budget: int) -> bool:
    widths = [prod(counts[:level]) for level in range(len(counts) + 1)]
    return sum(widths) <= budget and widths[-1] <= MAX_LEAVES
