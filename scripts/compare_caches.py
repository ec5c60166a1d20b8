"""How many of the experts that tokens ask for a cache would have held, by policy and by size; a table.

    python scripts/compare_caches.py TRACE.npz [--shares 75,50,25]

TRACE.npz is what trace_experts.py keeps. The cache is one for all layers and goes on from text to text; a token asks
for its experts layer by layer. `by layer` are caches of the same size for each layer. `used often of late` is what
specrun does (specrun/hardware/expert_cache.py). `most used` always holds the experts that the other texts use most.
`optimum` knows what will be asked for (Belady), so no policy that keeps each expert for which it had to wait has more
hits.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from moefication import caching
from numpy.typing import NDArray


def rates(choices: NDArray[np.integer], n_experts: int, size: int) -> dict[str, float]:
    """Hit rates of a cache of `size` experts. choices: int[n_texts, n_layers, n_tokens, n_used]."""
    n_layers = choices.shape[1]
    keys = choices + n_experts * np.arange(n_layers)[:, None, None]
    texts = [text.transpose(1, 0, 2).ravel().tolist() for text in keys]
    together = [expert for text in texts for expert in text]
    layers = [keys[:, layer].ravel().tolist() for layer in range(n_layers)]
    static = sum(
        caching.most_used(text, size, [expert for other in texts if other is not text for expert in other])
        for text in texts
    )
    hits = {
        "least recently used": caching.least_recently_used(together, size),
        "least recently used, by layer": sum(caching.least_recently_used(layer, size // n_layers) for layer in layers),
        "least frequently used": caching.least_frequently_used(together, size),
        "least frequently used, by layer": sum(
            caching.least_frequently_used(layer, size // n_layers) for layer in layers
        ),
        "most used": static,
        "used often of late": caching.used_often_of_late(choices, n_experts, size),
        "optimum": caching.optimum(together, size),
    }
    return {policy: n / len(together) for policy, n in hits.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--shares", default="75,50,25", metavar="LIST", help="of all experts, in percent (%(default)s)")
    options = parser.parse_args()
    choices = np.load(options.trace)["choices"]  # [n_texts, n_layers, n_tokens, n_used]
    n_experts = int(choices.max()) + 1
    shares = [int(share) for share in options.shares.split(",")]
    columns = [rates(choices, n_experts, choices.shape[1] * n_experts * share // 100) for share in shares]
    print("| policy | " + " | ".join(f"{share} % of the experts" for share in shares) + " |")
    print("| --- |" + " ---: |" * len(shares))
    for policy in columns[0]:
        print(f"| {policy} | " + " | ".join(f"{column[policy]:.1%}" for column in columns) + " |")


if __name__ == "__main__":
    main()
