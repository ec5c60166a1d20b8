"""Tokens a pass of SpecExec's tree by its size and by the sharpness of the draft's scores.

    python scripts/bench_growth.py [--prompts N] [--max-tokens N]

On the embedded pair, over passages of this Python's standard library, greedy and at T=0.8. Sharpness 1 is the paper's
rule: a child's score is the log probability that the draft gives it. The chain of the same depth stands beside.
"""

from __future__ import annotations

import argparse
import sysconfig
from pathlib import Path

import numpy as np

from specrun.catalog import embedded
from specrun.runtime import Runtime, RuntimeOptions
from specrun.sampling import Sampler, SamplingParameters
from specrun.speculation import Plan, sample_and_match
from specrun.speculation.drafters import ChainDrafter, DraftLimits, ModelCandidates, SpecExecDrafter

SHARPNESS = (0.5, 1.0, 1.5, 2.0, 3.0)
SIZES = ((8, 4), (16, 8), (32, 8), (32, 12), (64, 12))


def passages(runtime: Runtime, count: int, n_tokens: int = 64) -> list[list[int]]:
    """Passages of `n_tokens` tokens, each from another file of the standard library."""
    rng = np.random.default_rng(0)
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    found: list[list[int]] = []
    for file in rng.permutation(np.array(files, dtype=object)):
        tokens = runtime.model.tokenize(file.read_text(encoding="utf-8")[:20_000], add_special=False)
        if len(tokens) > 2 * n_tokens and len(found) < count:
            start = int(rng.integers(len(tokens) - n_tokens))
            found.append(tokens[start : start + n_tokens])
    return found


def tokens_a_pass(
    runtime: Runtime, prompts: list[list[int]], sampling: SamplingParameters, plan: Plan, sharpness: float, n: int
) -> float:
    """Mean accepted length over `n` tokens behind each prompt."""
    target, draft = runtime.engine.target, runtime.engine.draft
    assert draft is not None, "the embedded pair has a draft"
    sampler = Sampler(sampling, target.n_vocab)
    drafter = (
        ChainDrafter(draft, sampler)
        if plan.method == "chain"
        else SpecExecDrafter(ModelCandidates(draft, sampler), sharpness)
    )
    limits = DraftLimits(plan.budget, plan.depth, plan.width, target.max_leaves)
    n_tokens, n_passes = 0, 0
    for prompt in prompts:
        runtime.engine.reset()
        target.set_prompt(prompt)
        while len(target.tokens) < len(prompt) + n:
            tree = drafter.draft(target.tokens, limits)
            accepted = sample_and_match(tree, target.score(tree), sampler.sample, len(target.tokens), ())
            target.commit(tree, accepted.path, accepted.tokens[-1])
            n_tokens += len(accepted.tokens)
            n_passes += 1
    return n_tokens / n_passes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=128)
    arguments = parser.parse_args()
    largest = Plan.tree(*SIZES[-1])
    with Runtime(RuntimeOptions(embedded.TARGET, embedded.DRAFT, (largest,))) as runtime:
        prompts = passages(runtime, arguments.prompts)
        for name, sampling in (
            ("greedy", SamplingParameters(temperature=0)),
            ("T=0.8, default filters", SamplingParameters(temperature=0.8)),
            ("T=0.8, no filter", SamplingParameters(temperature=0.8, top_k=0, top_p=1, min_p=0)),
        ):
            print(f"\n{name:<26}" + "".join(f"{f'sharpness {s}':>15}" for s in SHARPNESS) + f"{'chain':>10}")
            for budget, depth in SIZES:
                tree, chain = Plan.tree(budget, depth), Plan.chain(depth)
                means = [tokens_a_pass(runtime, prompts, sampling, tree, s, arguments.max_tokens) for s in SHARPNESS]
                of_chain = tokens_a_pass(runtime, prompts, sampling, chain, 1.0, arguments.max_tokens)
                print(f"{tree!s:<26}" + "".join(f"{mean:>15.2f}" for mean in means) + f"{of_chain:>10.2f}", flush=True)


if __name__ == "__main__":
    main()
