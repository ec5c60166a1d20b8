"""How large the trees of several texts are that share a pass.

A further token may take long in a small pass and next to nothing in a pass of twice the size, because kernels compute
several tokens at a time. So one text's nodes may pay only together with those of the others. Each tree is grown with
the price that a node has in the best larger pass, and then all nodes are compared: the likeliest ones stay, as many as
bring most tokens for the time of the pass.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from specrun.speculation.planning.costs import Milliseconds, marginal_ms

_NODES_OF_EACH = 4  # that trees are expected to have, when the price of a node is looked for; chosen by hand


def node_ms(row: Milliseconds, n_tokens: int, n_texts: int) -> float:
    """Milliseconds for each node in the pass in which they take least, of those that trees of usual size make.

    row: float64[largest + 1], milliseconds of a pass by its tokens. n_tokens: of the pass without drafted nodes.
    """
    return marginal_ms(row[: n_tokens + 1 + _NODES_OF_EACH * n_texts], n_tokens)


def nodes_that_pay(
    chances: Sequence[NDArray[np.float64]], row: Milliseconds, n_tokens: int, rate: float, sizes: Collection[int]
) -> list[int]:
    """How many drafted nodes each tree keeps, so that expected tokens minus `rate` times milliseconds is largest.

    chances: of each text's drafted nodes, in any order; a node's is no larger than its parent's. row, n_tokens: as
    above. rate: tokens per millisecond. sizes: of passes that are considered, besides those with no node and with all.
    """
    texts = np.repeat(np.arange(len(chances)), [len(own) for own in chances])
    pooled = np.concatenate([np.empty(0), *chances])
    order = np.argsort(-pooled, kind="stable")
    most = max(min(len(order), len(row) - 1 - n_tokens), 0)
    gains = np.append(0.0, np.cumsum(pooled[order[:most]]))
    counts = np.array([n for n in range(most + 1) if n in (0, most) or n_tokens + n in sizes])
    best = int(counts[(gains[counts] - rate * row[np.minimum(n_tokens + counts, len(row) - 1)]).argmax()])
    return np.bincount(texts[order[:best]], minlength=len(chances)).tolist()
