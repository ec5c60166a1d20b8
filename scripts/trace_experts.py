"""How likely real text is to a model, and how often the experts of a mixture are those that tokens before it used.

    python scripts/trace_experts.py MODEL.gguf [--excerpts 4] [--trace TRACE.npz] [-t THREADS]

Prints the perplexity by kind of text; the excerpts are of documents that no mixture was fitted to. Of a mixture, prints
the share of a token's experts that the last 1, 4 and 16 tokens used, by layer, and that share where the tokens of all
texts are shuffled: what is left is due to experts that are chosen often anyway. --trace keeps what was chosen.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from moefication import texts, tracing

from specrun.hardware.cpu import usable_cores
from specrun.llama import LlamaModel

BEFORE = (1, 4, 16)  # tokens


def locality(choices: list[tracing.Choices]) -> list[str]:
    """A table by layer, and of all layers."""
    shuffled = _shuffled(choices)
    found = [np.mean([tracing.reused(text, n) for text in choices], axis=0) for n in BEFORE]
    found += [np.mean([tracing.reused(text, n) for text in shuffled], axis=0) for n in BEFORE]
    lines = ["| layer | " + " | ".join([*(f"last {n}" for n in BEFORE), *(f"shuffled, {n}" for n in BEFORE)]) + " |"]
    lines.append("| ---: |" + " ---: |" * len(found))
    rows = [(str(i), [share[i] for share in found]) for i in range(len(found[0]))]
    for name, shares in [*rows, ("all", [share.mean() for share in found])]:
        lines.append(f"| {name} | " + " | ".join(f"{share:.0%}" for share in shares) + " |")
    return lines


def _shuffled(choices: list[tracing.Choices]) -> list[tracing.Choices]:
    """The tokens of all texts dealt out again, so that neighbours have nothing in common but their routers."""
    tokens = np.concatenate(choices, axis=1)
    return np.split(tokens[:, np.random.default_rng(0).permutation(tokens.shape[1])], len(choices), axis=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--excerpts", type=int, default=4, metavar="N", help="of each kind (%(default)s)")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="keep what was chosen here")
    parser.add_argument("-t", "--threads", type=int, default=usable_cores(), metavar="N")
    options = parser.parse_args()
    with LlamaModel(options.model) as model:
        parts = texts.excerpts(model, options.excerpts, is_held_out=True)
    losses, choices = tracing.read(options.model, np.concatenate(list(parts.values())), options.threads)
    by_kind = dict(zip(parts, losses.reshape(len(parts), -1), strict=True)) | {"all": losses}
    print("perplexity: " + ", ".join(f"{kind} {np.exp(loss.mean()):.2f}" for kind, loss in by_kind.items()))
    if choices:
        print("\n".join(locality(choices)))
    if choices and options.trace:
        np.savez_compressed(options.trace, choices=np.stack(choices))


if __name__ == "__main__":
    main()
