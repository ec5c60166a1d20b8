"""Which of the experts that a cache misses could be read before their router has chosen, and which would be in vain.

    python scripts/predict_experts.py TRACE.npz [--copy COPY.npz] [--shares 75,50,25] [--chance 0.6]

TRACE.npz is what trace_experts.py keeps; the cache is specrun's (specrun/hardware/expert_cache.py), for so many percent
of all experts. An expert that is missing is predicted where its chance is at least --chance, by linear regression from
what the token chose in the layer before, what the last token chose in the same layer, or both, fitted to the other half
of the texts. COPY.npz are the choices along the same texts of a copy of the model with fewer bits, which may draft.

`right` is the share of the predicted experts that the router then chose, and so of the bytes that are not read in vain;
`found` is the share of the missing experts that were predicted.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specrun.hardware.expert_cache import ExpertCache

Chosen = NDArray[np.float32]  # [n_layers, n_tokens, n_experts], 1 where a token uses an expert
BEFORE, LAST, COPY = "the layer before", "the last token", "a copy with fewer bits"
_RIDGE = 10.0  # tokens that a weight of 0 counts as


def chosen(text: NDArray[np.integer], n_experts: int) -> Chosen:
    """text: int[n_layers, n_tokens, n_used]."""
    found = np.zeros((*text.shape[:2], n_experts), np.float32)
    np.put_along_axis(found, text, 1, axis=2)
    return found


def features(sources: tuple[str, ...], text: Chosen, layer: int) -> Chosen:
    """What is known of each token but the first before the layer's router has chosen, [n_tokens - 1, n]."""
    known = {BEFORE: text[layer - 1, 1:], LAST: text[layer, :-1]}
    return np.hstack([*(known[source] for source in sources), np.ones((text.shape[1] - 1, 1), np.float32)])


def chances(sources: tuple[str, ...], others: list[Chosen], text: Chosen) -> Chosen:
    """The chance of each expert, by a regression over other texts; 0 for the first layer and the first token."""
    found = np.zeros_like(text)
    for layer in range(1, len(text)):
        inputs = np.concatenate([features(sources, other, layer) for other in others])
        outputs = np.concatenate([other[layer, 1:] for other in others])
        products = inputs.T @ inputs + _RIDGE * np.eye(inputs.shape[1], dtype=np.float32)
        found[layer, 1:] = features(sources, text, layer) @ np.linalg.solve(products, inputs.T @ outputs)
    return found


def predictors(texts: list[Chosen], copies: list[Chosen] | None) -> Iterator[tuple[str, list[Chosen]]]:
    """Each predictor with the chances that it gives in each text."""
    half = len(texts) // 2
    for sources in ((BEFORE,), (LAST,), (BEFORE, LAST)):
        found = []
        for i, text in enumerate(texts):
            others = texts[half:] if i < half else texts[:half]
            found.append(chances(sources, others, text))
        yield " and ".join(sources), found
    if copies:
        yield COPY, copies


def cache_for(text: Chosen, n_used: int, share: int) -> ExpertCache:
    """specrun's cache with room for so many percent of the experts that such a text may use, all of one size."""
    n_layers, _, n_experts = text.shape
    return ExpertCache(np.ones((n_layers, n_experts), np.int64), n_used, n_layers * n_experts * share // 100)


def rates(texts: list[Chosen], given: list[Chosen], n_used: int, share: int, chance: float) -> tuple[float, float]:
    """The share of the predicted experts that are right, and of the missing that are found."""
    cache = cache_for(texts[0], n_used, share)
    n_predicted = n_right = n_missing = 0
    for text, likely in zip(texts, given, strict=True):
        for token in range(text.shape[1]):
            for layer in range(len(text)):
                is_used, lacks = text[layer, token] > 0, ~cache.kept[layer]
                predicted = lacks & (likely[layer, token] >= chance)
                n_predicted += np.count_nonzero(predicted)
                n_right += np.count_nonzero(predicted & is_used)
                n_missing += np.count_nonzero(lacks & is_used)
                cache.choose(layer, is_used.astype(np.int64))
    return n_right / max(n_predicted, 1), n_right / max(n_missing, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--copy", type=Path, metavar="TRACE")
    parser.add_argument("--shares", default="75,50,25", metavar="LIST", help="of all experts, in percent (%(default)s)")
    parser.add_argument("--chance", type=float, default=0.6, help="from which an expert is predicted (%(default)s)")
    options = parser.parse_args()
    choices = np.load(options.trace)["choices"]  # [n_texts, n_layers, n_tokens, n_used]
    n_experts, n_used = int(choices.max()) + 1, choices.shape[-1]
    texts = [chosen(text, n_experts) for text in choices]
    copies = [chosen(text, n_experts) for text in np.load(options.copy)["choices"]] if options.copy else None
    shares = [int(share) for share in options.shares.split(",")]
    print("| by | " + " | ".join(f"{share} %: right, found" for share in shares) + " |")
    print("| --- |" + " ---: |" * len(shares))
    for name, given in predictors(texts, copies):
        found = [rates(texts, given, n_used, share, options.chance) for share in shares]
        print(f"| {name} | " + " | ".join(f"{right:.0%}, {of_missing:.0%}" for right, of_missing in found) + " |")


if __name__ == "__main__":
    main()
