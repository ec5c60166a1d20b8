"""How much the experts that a tree's node would miss differ from node to node, and what knowing them could bring.

    python scripts/price_nodes.py TRACE.npz [--shares 75,50,25] [--miss 1.6] [--plain 62] [--node 14]

TRACE.npz is what trace_experts.py keeps; the cache is specrun's (specrun/hardware/expert_cache.py), for so many percent
of all experts. Of a pass over two nodes, the text's next tokens, counted are the experts that the first misses, and
those that the second misses besides.

`price` is what the second node adds to the pass, as a share of a plain pass. A missing expert takes --miss
milliseconds, a plain pass that misses none --plain, and a further node another --node of computing; ± is the standard
deviation from node to node. `at most` is what a pass could commit in addition, per node, if each node's own price were
known before, instead of the mean: a node with the chance p pays if p is above its price, and with all chances from 0 to
1 equally likely the gain is half of the price's variance.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from predict_experts import Chosen, cache_for, chosen


def missing(texts: list[Chosen], n_used: int, share: int) -> NDArray[np.int64]:
    """For each token but the last of the texts, the experts that it misses, and those that the next one misses besides
    in the same pass, int64[n, 2].
    """
    cache = cache_for(texts[0], n_used, share)
    found = []
    for text in texts:
        for token in range(text.shape[1] - 1):
            first, second = text[:, token] > 0, text[:, token + 1] > 0
            lacks = ~cache.kept
            found.append([np.count_nonzero(first & lacks), np.count_nonzero(second & lacks & ~first)])
            for layer in range(len(text)):
                cache.choose(layer, first[layer].astype(np.int64))
    return np.array(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--shares", default="75,50,25", metavar="LIST", help="of all experts, in percent (%(default)s)")
    parser.add_argument("--miss", type=float, default=1.6, metavar="MS", help="of an expert (%(default)s)")
    parser.add_argument("--plain", type=float, default=62, metavar="MS", help="of a pass in memory (%(default)s)")
    parser.add_argument("--node", type=float, default=14, metavar="MS", help="of a further node (%(default)s)")
    options = parser.parse_args()
    choices = np.load(options.trace)["choices"]  # [n_texts, n_layers, n_tokens, n_used]
    texts = [chosen(text, int(choices.max()) + 1) for text in choices]
    print("| room for | experts missing, first node | second node, besides | price | at most |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    for share in map(int, options.shares.split(",")):
        first, second = missing(texts, choices.shape[-1], share).T
        prices = (options.node + options.miss * second) / (options.plain + options.miss * first.mean())
        gain = prices.var() / 2
        print(
            f"| {share} % | {first.mean():.0f} ± {first.std():.0f} | {second.mean():.0f} ± {second.std():.0f} "
            f"| {prices.mean():.2f} ± {prices.std():.2f} | {gain:.3f} |"
        )


if __name__ == "__main__":
    main()
