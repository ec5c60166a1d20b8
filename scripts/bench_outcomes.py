"""How many outcomes of a pass have to be drafted ahead so that the one that comes is among them.

    python scripts/bench_outcomes.py [--budget 16] [--depth 6] [--max-tokens 64]

The embedded pair writes the prompts of code and of structured text that ship with `specrun bench`. For every pass the
outcomes are listed, likeliest first, as `--overlap` drafts for them; counted is at which place the real one was.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import islice

import numpy as np

from specrun.bench import bench_prompts as prompts
from specrun.catalog import embedded
from specrun.engine.decoding import Engine
from specrun.engine.model import Model
from specrun.engine.request import Request
from specrun.engine.run_options import RunOptions
from specrun.sampling import Candidates, Sampler, SamplingParameters
from specrun.speculation.controllers.chooser import FixedPlan
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.growth import ModelCandidates, TreeGrowth
from specrun.speculation.plan import Plan
from specrun.speculation.planning.outcomes import likeliest
from specrun.speculation.tree import ROOT

PLACES = (1, 2, 4, 8, 16, 32, 64, 128)


def places(engine: Engine, prompt: list[int], sampling: SamplingParameters, plan: Plan, max_tokens: int) -> list[float]:
    """Of every pass but the last: how many outcomes were listed before the one that came; inf if all were."""
    assert engine.draft is not None, "the embedded pair has a draft"
    source = ModelCandidates(engine.draft, Sampler(sampling, engine.target.n_vocab))
    found = []
    text = list(prompt)
    for step in engine.generate(Request(prompt, sampling, max_tokens, ignore_eos=True), FixedPlan(plan)):
        committed = text

        def next_tokens(path: Sequence[int], committed: Sequence[int] = committed) -> Candidates:
            return source.children(TreeGrowth([*committed, *path]), [ROOT])[0]

        listed = list(islice(likeliest(step.tree, next_tokens), max(PLACES)))
        came = tuple(step.tokens)
        found.append(float(listed.index(came)) if came in listed else np.inf)
        text = [*text, *step.tokens]
    return found[:-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=int, default=16)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--max-tokens", type=int, default=64)
    arguments = parser.parse_args()
    plan = SPECEXEC.plan(arguments.budget, arguments.depth)
    print("| outcomes | " + " | ".join(map(str, PLACES)) + " |")
    print("| --- |" + " ---: |" * len(PLACES))
    with Model(RunOptions(embedded.TARGET, embedded.DRAFT, (plan,))) as model:
        for temperature in (0.0, 0.8):
            sampling = SamplingParameters(temperature=temperature)
            found: list[float] = []
            for prompt in prompts.shipped(("code", "structured")):
                tokens = model.prompt_tokens(prompt.text, raw=True)
                found += places(model.engine, tokens, sampling, plan, arguments.max_tokens)
            shares = [float((np.array(found) < n).mean()) for n in PLACES]
            print(f"| T={temperature:g} | " + " | ".join(f"{share:.0%}" for share in shares) + " |", flush=True)


if __name__ == "__main__":
    main()
