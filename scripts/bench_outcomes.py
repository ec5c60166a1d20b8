"""How many outcomes of a pass have to be drafted ahead so that the one that comes is among them, and in which order.

    python scripts/bench_outcomes.py [--budget 16] [--depth 6] [--max-tokens 48] [--prompts 4]

The embedded pair writes prompts of code and of structured text that ship with `specrun bench`. For every pass the
outcomes are listed, likeliest first, as `--overlap` drafts for them. The first table counts at which place the real one
was. The second counts in which share of the passes its tree would be ready when the target's pass is over, if trees are
drafted one after the other, as `--overlap` does, and if up to 8 nodes of several trees share a draft pass, likeliest
first. It needs no clock: draft passes take the times that DRAFTS names. For the trees that share passes it is taken
that the draft still knows what it said after each node of the target's tree, so an implementation would hide less.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from specrun.bench import bench_prompts as prompts
from specrun.catalog import embedded
from specrun.engine.engine import Engine
from specrun.engine.generation import Generation
from specrun.engine.model import Model
from specrun.engine.overlap import LEAST_CHANCE, likeliest
from specrun.engine.passes import write_alone
from specrun.engine.request import Request
from specrun.engine.run_options import RunOptions
from specrun.llama import DraftContext
from specrun.llama.batch import Batch
from specrun.llama.context import Logits
from specrun.sampling import Candidates, Sampler, SamplingParameters
from specrun.speculation.controllers.chooser import FixedPlan
from specrun.speculation.drafter import DraftLimits
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.growth import ModelCandidates, TreeGrowth
from specrun.speculation.method import Drafting, Plan
from specrun.speculation.shape import MAX_LEAVES
from specrun.speculation.tree import ROOT, TokenTree

PLACES = (1, 2, 4, 8, 16, 32, 64, 128)
TARGET_MS = (50.0, 200.0, 700.0)  # of a target's pass
SHARED_WIDTH = 8  # nodes of a shared draft pass
# Milliseconds of a draft pass: for itself, for each node. Only the first was measured; the others are examples.
DRAFTS = {"small, on a core": (0.25, 0.25), "100 times as large": (7.0, 1.5), "on a GPU of its own": (3.0, 0.02)}


@dataclass(frozen=True)
class Outcome:
    """An outcome and what drafting for it takes.

    tokens: the tokens that the pass would commit.
    asked: nodes of each draft pass that it took to find this outcome after the one before.
    drafted: nodes of each draft pass of its tree.
    """

    tokens: tuple[int, ...]
    asked: list[int]
    drafted: list[int]


@dataclass
class Passes:
    """What was counted of the passes with one plan at one temperature."""

    places: list[float] = field(default_factory=list)  # outcomes listed before the one that came; inf if all were
    came: list[tuple[int, ...]] = field(default_factory=list)
    outcomes: list[list[Outcome]] = field(default_factory=list)  # those that `--overlap` drafts for, likeliest first


class Recorder:
    """Counts the tokens of a draft's passes."""

    def __init__(self, draft: DraftContext) -> None:
        self._sizes: list[int] = []
        decode = draft.context.decode

        def recorded(batch: Batch) -> Logits:
            self._sizes.append(len(batch))
            return decode(batch)

        draft.context.decode = recorded  # type: ignore[method-assign]

    def take(self) -> list[int]:
        """The tokens of each pass since the last call."""
        sizes, self._sizes[:] = self._sizes[:], []
        return sizes


def count(engine: Engine, recorder: Recorder, prompt: list[int], drafting: Drafting, n: int, passes: Passes) -> None:
    """Add the passes that write `n` tokens behind a prompt, but the last."""
    source = drafting.source
    assert isinstance(source, ModelCandidates)
    plan = drafting.plan
    limits = DraftLimits(plan.budget, plan.depth, plan.width, MAX_LEAVES)
    text = list(prompt)
    steps = list(
        write_alone(Generation(engine, Request(prompt, source.sampler.parameters, n, ignore_eos=True), FixedPlan(plan)))
    )
    for step in steps[:-1]:
        committed = text

        def next_tokens(path: Sequence[int], committed: Sequence[int] = committed) -> Candidates:
            return source.children(TreeGrowth([*committed, *path]), [ROOT])[0]

        came = tuple(step.tokens)
        listed = list(islice(likeliest(step.tree, next_tokens), max(PLACES)))
        passes.places.append(float(listed.index(came)) if came in listed else np.inf)
        passes.came.append(came)
        passes.outcomes.append(drafted_ahead(recorder, drafting, limits, text, step.tree, next_tokens))
        text = [*text, *step.tokens]


def drafted_ahead(
    recorder: Recorder,
    drafting: Drafting,
    limits: DraftLimits,
    text: Sequence[int],
    tree: TokenTree,
    next_tokens: Callable[[Sequence[int]], Candidates],
) -> list[Outcome]:
    """All outcomes of a pass that `--overlap` drafts for if it has the time."""
    outcomes = []
    recorder.take()
    for path in likeliest(tree, next_tokens, LEAST_CHANCE):
        asked = recorder.take()
        drafter = drafting.drafter()
        assert drafter
        drafter.draft([*text, *path], limits)
        outcomes.append(Outcome(path, asked, recorder.take()))
    return outcomes


def one_by_one(outcomes: Sequence[Outcome], came: tuple[int, ...], base: float, each: float) -> float:
    """Milliseconds until the tree for the outcome that came is drafted; inf if it never is."""
    ms = 0.0
    for outcome in outcomes:
        ms += sum(base + each * n for n in (*outcome.asked, *outcome.drafted))
        if outcome.tokens == came:
            return ms
    return np.inf


def sharing_passes(outcomes: Sequence[Outcome], came: tuple[int, ...], base: float, each: float) -> float:
    """The same if trees share draft passes and what the draft says after the target's tree is known already."""
    # The first pass over a tree reads one token, as the path to it is in the cache.
    left = [(outcome.tokens, [1, *outcome.drafted[1:]]) for outcome in outcomes]
    ms = 0.0
    while left:
        room = SHARED_WIDTH
        for _, widths in left:
            if widths[0] > room < SHARED_WIDTH:
                break
            room -= widths.pop(0)
            if room <= 0:
                break
        ms += base + each * (SHARED_WIDTH - room)
        if any(tokens == came and not widths for tokens, widths in left):
            return ms
        left = [(tokens, widths) for tokens, widths in left if widths]
    return np.inf


def measured(engine: Engine, source: ModelCandidates) -> tuple[float, float]:
    """Milliseconds of a draft pass for itself and for each node, on half of the threads as `--overlap` drafts."""
    assert engine.draft
    ms: dict[int, list[float]] = {1: [], SHARED_WIDTH: []}
    with engine.draft.context.half_of_the_threads():
        for _ in range(20):
            for n, times in ms.items():
                growth = TreeGrowth(list(range(100, 200)))
                source.children(growth, [ROOT])
                nodes = [growth.add(300 + i, ROOT, -1.0, 0.1) for i in range(n)]
                started = time.perf_counter()
                source.children(growth, nodes)
                times.append(1e3 * (time.perf_counter() - started))
    one, many = (float(np.median(times)) for times in ms.values())
    each = (many - one) / (SHARED_WIDTH - 1)
    return one - each, each


def ready_table(found: dict[str, Passes]) -> list[str]:
    """Rows of the second table."""
    lines = []
    for name, passes in found.items():
        n_passes = [sum(len(o.asked) + len(o.drafted) for o in outcomes) for outcomes in passes.outcomes]
        print(f"{name}: {len(passes.came)} passes, {np.mean(n_passes):.0f} draft passes during each")
        for draft, cost in DRAFTS.items():
            cells = []
            usual = np.mean([sum(cost[0] + cost[1] * n for n in o[0].drafted) for o in passes.outcomes if o])
            for target_ms in TARGET_MS:
                each_pass = list(zip(passes.outcomes, passes.came, strict=True))
                shares = [
                    np.mean([when(outcomes, came, *cost) <= target_ms for outcomes, came in each_pass])
                    for when in (one_by_one, sharing_passes)
                ]
                gain = (shares[1] - shares[0]) * usual / (usual + target_ms)
                cells.append(f"{shares[0]:.0%} | {shares[1]:.0%} | {gain:+.1%}")
            lines.append(f"| {name} | {draft} | {usual:.0f} | " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=int, default=16)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--prompts", type=int, default=4)
    arguments = parser.parse_args()
    plans: list[Plan] = [SPECEXEC.plan(arguments.budget, arguments.depth), CHAIN.plan(depth=arguments.depth)]
    found: dict[str, Passes] = {}
    with Model(RunOptions(embedded.TARGET, embedded.DRAFT, (plans[0],))) as model:
        engine = model.engine
        assert engine.draft is not None, "the embedded pair has a draft"
        base, each = measured(
            engine, ModelCandidates(engine.draft, Sampler(SamplingParameters(), engine.target.n_vocab))
        )
        print(f"ms of a pass of the embedded draft on half of the threads: {base:.2f} + {each:.2f} for each node\n")
        recorder = Recorder(engine.draft)
        texts = [model.prompt_tokens(p.text, raw=True) for p in prompts.shipped(("code", "structured"))]
        for plan in plans:
            for temperature in (0.0, 0.8):
                sampler = Sampler(SamplingParameters(temperature=temperature), engine.target.n_vocab)
                drafting = Drafting(plan, temperature, ModelCandidates(engine.draft, sampler))
                passes = found[f"{plan}, T={temperature:g}"] = Passes()
                for text in texts[:: max(len(texts) // arguments.prompts, 1)][: arguments.prompts]:
                    count(engine, recorder, text, drafting, arguments.max_tokens, passes)
    print("| outcomes | " + " | ".join(map(str, PLACES)) + " |")
    print("| --- |" + " ---: |" * len(PLACES))
    for name, passes in found.items():
        print(f"| {name} | " + " | ".join(f"{(np.array(passes.places) < n).mean():.0%}" for n in PLACES) + " |")
    print()
    lines = ready_table(found)
    heads = " | ".join(f"{ms:.0f} ms: one by one | sharing | gain" for ms in TARGET_MS)
    print(f"\n| plan | draft | ms for a tree | {heads} |")
    print("| --- | --- | ---: |" + " ---: |" * (3 * len(TARGET_MS)))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
