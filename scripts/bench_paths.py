"""What several paths in a pass would commit on a model with recurrent layers, beside one path of as many tokens.

    python scripts/bench_paths.py [--noise 0,0.3] [--temps 0,0.8] [--tokens 96]

A recurrent layer computes several sequences in one pass if all are equally long, and shares nothing between them. So
`k` paths that begin at the same root take k times their length in tokens. This counts what they commit: the embedded
target writes texts; at each place its draft grows a tree, from which the k paths are taken that are expected to gain
most, each as deep as there are tokens for; the longest of their beginnings that the target wrote is accepted. Both
models have attention alone, which does not matter, as only tokens are counted. --noise makes the draft worse, by this
share of its weights. A tree that shares its beginnings, as other models check it, is in the last column.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from specrun.bench import bench_prompts
from specrun.catalog import embedded
from specrun.engine.generation import Generation
from specrun.engine.model import Model
from specrun.engine.passes import write_alone
from specrun.engine.request import Request
from specrun.engine.run_options import RunOptions
from specrun.sampling import Sampler, SamplingParameters
from specrun.speculation.controllers.chooser import FixedPlan
from specrun.speculation.drafter import DraftLimits
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.growth import ModelCandidates
from specrun.speculation.method import OFF, Drafting, Plan
from specrun.speculation.tree import ROOT, TokenTree
from tests.hybrids import noisy

SIZES = (8, 16, 32)  # tokens of a pass, those behind the root
COUNTS = (1, 2, 4, 8)  # paths
GROWN = 192  # nodes of the tree from which paths are taken
WIDTH = 16


def with_best_paths(tree: TokenTree, count: int, depth: int) -> TokenTree:
    """The nodes on at most `count` paths with at most `depth` nodes below the root, chosen one after the other: each is
    the one whose new nodes are likeliest to be accepted.
    """
    chances = np.exp(tree.scores)
    paths = [tree.path_to(leaf)[: depth + 1] for leaf, children in enumerate(tree.children) if not children]
    chosen = np.zeros(len(tree), np.bool_)
    chosen[ROOT] = True
    for _ in range(min(count, len(paths))):
        best = max(paths, key=lambda path: sum(chances[node] for node in path if not chosen[node]))
        chosen[best] = True
        paths.remove(best)
    return tree.keep(chosen)


def tokens_per_pass(model: Model, text: list[int], start: int, count: int, size: int, temperature: float) -> float:
    """Tokens that a pass over `size` tokens commits, in `count` paths, over the text behind `start`.

    count: 0 is a tree of `size` nodes.
    """
    sampler = Sampler(SamplingParameters(temperature=temperature, seed=1), model.engine.target.n_vocab, None, start)
    draft = model.engine.draft
    assert draft
    draft.reset()
    candidates = ModelCandidates(draft, sampler)
    depth = size // count if count else size
    budget = size + 1 if count == 0 else 1 + (size if count == 1 else max(GROWN, size))
    method = CHAIN if count == 1 else SPECEXEC
    plan = Plan(method, budget, depth, WIDTH)
    drafter = Drafting(plan, temperature, candidates).drafter()
    assert drafter
    place, n_passes = start, 0
    while place < len(text):
        limits = DraftLimits(budget, depth, WIDTH, GROWN)
        tree = drafter.draft(text[:place], limits).tree
        checked = with_best_paths(tree, count, depth) if count else tree
        place += len(checked.path_of(text[place:]))  # the root stands for the target's own token
        n_passes += 1
    return (len(text) - start) / n_passes


def written(model: Model, temperature: float, n_tokens: int) -> list[tuple[list[int], int]]:
    """Texts of the target with their prompts, and the length of each prompt."""
    texts = []
    for prompt in bench_prompts.shipped(["code"]):
        tokens = model.prompt_tokens(prompt.text, raw=True)
        sampling = SamplingParameters(temperature=temperature, seed=1)
        request = Request(tokens, sampling, n_tokens, ignore_eos=True)
        passes = write_alone(Generation(model.engine, request, FixedPlan(OFF.plan())))
        texts.append((tokens + [token for one in passes for token in one.tokens], len(tokens)))
    return texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--noise", default="0,0.3")
    parser.add_argument("--temps", default="0,0.8")
    parser.add_argument("--tokens", type=int, default=96)
    asked = parser.parse_args()
    largest = SPECEXEC.plan(GROWN, max(SIZES))
    print("| noise | T | tokens | " + " | ".join(f"{n} path{'s' * (n > 1)}" for n in COUNTS) + " | tree |")
    print("| --- " * (4 + len(COUNTS)) + "|")
    with tempfile.TemporaryDirectory() as folder:
        for noise in map(float, asked.noise.split(",")):
            draft = noisy(Path(folder) / f"draft-{noise}.gguf", embedded.DRAFT, noise) if noise else embedded.DRAFT
            with Model(RunOptions(embedded.TARGET, draft, (largest, OFF.plan()), ctx_size=1024)) as model:
                for temperature in map(float, asked.temps.split(",")):
                    texts = written(model, temperature, asked.tokens)
                    for size in SIZES:
                        cells = []
                        for count in (*COUNTS, 0):
                            one = [tokens_per_pass(model, *text, count, size, temperature) for text in texts]
                            cells.append(f"{sum(one) / len(one):.2f}")
                        print(f"| {noise:g} | {temperature:g} | {size} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
