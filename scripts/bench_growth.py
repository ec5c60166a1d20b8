"""Tokens a pass by the size of the tree, for chain, SpecExec, OPT-Tree, Sequoia and specrun's own growth.

    python scripts/bench_growth.py [--prompts N] [--max-tokens N] [--budgets LIST] [--methods NAME ...] [--leaves N]
        [-o FILE.json]

On the embedded pair, greedy and at T=0.8. Own growth and Sequoia's trees are calibrated on passages of this Python's
standard library and all are measured after passages of the packages beside specrun, which neither model was trained
on. Passes cost nothing here, so every method fills its budget: this is about what a node is worth, not about speed.

What samples and matches commits the text that the target writes by itself, so the text is written once and only drafts
are made; Sequoia's own rule runs whole. As only drafts are made, --leaves can go beyond the 256 leaf paths that
llama.cpp can score in one pass, which shows what that bound costs.
"""

from __future__ import annotations

import argparse
import json
import sysconfig
from pathlib import Path

import numpy as np

from specrun.catalog import embedded
from specrun.decoding.engine import Engine
from specrun.decoding.generation import Generation, Request
from specrun.decoding.passes import write_alone
from specrun.decoding.tree_shapes import PositionalMeter
from specrun.loading.model import Model
from specrun.loading.run_options import RunOptions
from specrun.sampling import Sampler, SamplingParameters
from specrun.speculation.accept import Accepted
from specrun.speculation.controllers.chooser import FixedPlan
from specrun.speculation.drafter import Draft, Drafter, DraftLimits
from specrun.speculation.drafters import sequoia
from specrun.speculation.drafters.chain import ChainDrafter
from specrun.speculation.drafters.cost_aware import ADAPTIVE, CostAwareDrafter
from specrun.speculation.drafters.sequoia import StaticDrafter
from specrun.speculation.drafters.specexec import SPECEXEC, SpecExecDrafter, sharpness_at
from specrun.speculation.growth import ModelCandidates
from specrun.speculation.papers.growers import LevelDrafter, opt_tree
from specrun.speculation.planning.calibration import Calibration
from specrun.speculation.planning.costs import CostModel, CostTable, PassTime
from specrun.speculation.planning.guide import Guide, PassRecord, RunCosts
from specrun.speculation.registry import METHODS
from specrun.speculation.tree import MAX_LEAVES, ROOT, TreeShape

BUDGETS = (4, 8, 16, 32, 64, 128, 256, 512)
DEPTH = 24
N_PROMPT = 64
PACKAGES = ("rich", "typer", "huggingface_hub", "click", "psutil", "prompt_toolkit", "jinja2", "httpx")


def passages(model: Model, files: list[Path], count: int) -> list[list[int]]:
    """Passages of N_PROMPT tokens, each from another file."""
    rng = np.random.default_rng(0)
    found: list[list[int]] = []
    for file in rng.permutation(np.array(files, dtype=object)):
        tokens = model.llama_model.tokenize(file.read_text(encoding="utf-8")[:20_000], add_special=False)
        if len(tokens) > 4 * N_PROMPT and len(found) < count:
            start = int(rng.integers(len(tokens) - N_PROMPT))
            found.append(tokens[start : start + N_PROMPT])
    return found


def written(
    engine: Engine, prompt: list[int], sampling: SamplingParameters, n_tokens: int, plan: FixedPlan
) -> list[int]:
    """What the target writes after a prompt."""
    engine.reset()
    return [
        token
        for step in write_alone(Generation(engine, Request(prompt, sampling, n_tokens, ignore_eos=True), plan))
        for token in step.tokens
    ]


def tokens_a_pass(
    drafter: Drafter, guide: Guide | None, limits: DraftLimits, prompt: list[int], text: list[int]
) -> tuple[int, int]:
    """Tokens and passes that it takes to commit `text`, but for the end of it, which would cut passes short.

    guide: learns from every pass, as it does while generating.
    """
    place, n_passes = 0, 0
    while place < len(text) - DEPTH:
        tree = drafter.draft(prompt + text[:place], limits).tree
        path, tokens = [ROOT], [text[place]]
        while (child := tree.child_with_token(path[-1], tokens[-1])) is not None:
            path.append(child)
            tokens.append(text[place + len(tokens)])
        place += len(tokens)
        n_passes += 1
        if guide:
            guide.learn(PassRecord(Draft(tree), Accepted(path, tokens), 1e-3, 1e-3))
    return place, n_passes


def free_guide(budget: int, calibration: Calibration) -> Guide:
    """Passes of any size take no time, so that a node is worth having whatever it brings."""
    times = [PassTime(n, 64, 1.0) for n in {1, budget}]
    draft = CostTable([PassTime(1, 64, 0.0), PassTime(512, 64, 0.0)])
    return Guide(RunCosts.of(CostModel(CostTable(times), draft)), calibration)


def taught(engine: Engine, prompts: list[list[int]], sampling: SamplingParameters) -> tuple[Calibration, list[float]]:
    """Calibration and positional acceptance by texts that the target writes after prompts."""
    guide, meter = free_guide(64, Calibration()), PositionalMeter(engine, sampling)
    for i, prompt in enumerate(prompts):
        seeded = SamplingParameters(temperature=sampling.temperature, seed=i)
        text = written(engine, prompt, seeded, 128, FixedPlan(ADAPTIVE.plan(64, 16, 64), guide))
        meter.add([*prompt, *text], len(prompt) - 1)
    return guide.calibration.with_run(), meter.vector()


def growers(
    engine: Engine, sampling: SamplingParameters, shape: TreeShape, n: int, own: Guide
) -> dict[str, tuple[Drafter, Guide | None]]:
    """Drafters by name, of trees of `n` nodes, with what they learn from.

    shape: Sequoia's. own: what our own growth is weighed with.
    """
    assert engine.draft is not None, "the embedded pair has a draft"
    sampler = Sampler(sampling, engine.target.n_vocab)
    source = ModelCandidates(engine.draft, sampler)
    grown: dict[str, tuple[Drafter, Guide | None]] = {
        "chain": (ChainDrafter(ModelCandidates(engine.draft, sampler)), None),
        "SpecExec": (SpecExecDrafter(source, 1.0), None),
        "OPT-Tree": (LevelDrafter(source, opt_tree(free_guide(n, Calibration()))), None),
        "Sequoia's tree, matched": (StaticDrafter(source, shape), None),
        "own growth": (CostAwareDrafter(source, own), own),
    }
    if sharpness_at(sampling.temperature) != 1:
        grown["SpecExec, sharpened"] = SpecExecDrafter(source, sharpness_at(sampling.temperature)), None
    return grown


def of_sequoias_rule(
    engine: Engine, prompts: list[list[int]], sampling: SamplingParameters, vector: list[float], n: int, n_tokens: int
) -> float:
    """Tokens a pass of Sequoia whole, which writes texts of its own: as many after each prompt."""
    plan = METHODS["sequoia"].plan(max(n, 2), DEPTH).shaped(sequoia.best_shape(vector, n, DEPTH))
    tokens, passes = 0, 0
    for i, prompt in enumerate(prompts):
        engine.reset()
        seeded = SamplingParameters(temperature=sampling.temperature, seed=i)
        lengths = [
            len(step.accepted.tokens)
            for step in write_alone(
                Generation(engine, Request(prompt, seeded, n_tokens, ignore_eos=True), FixedPlan(plan))
            )
        ]
        tokens, passes = tokens + sum(lengths[:-1]), passes + len(lengths) - 1
    return tokens / passes


def measure(model: Model, arguments: argparse.Namespace) -> dict[str, dict[str, dict[int, float]]]:
    """Tokens a pass by temperature, method and budget."""
    engine = model.engine
    library = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    others = sorted(file for name in PACKAGES for file in (Path(sysconfig.get_path("purelib")) / name).glob("*.py"))
    calibrate_on = passages(model, library, 12)
    prompts = passages(model, others, arguments.prompts)
    rows: dict[str, dict[str, dict[int, float]]] = {}
    for temperature in arguments.temps:
        sampling = SamplingParameters(temperature=temperature)
        calibration, vector = taught(engine, calibrate_on, sampling)
        # A seed for each text: with one for all they would share their luck, position by position.
        seeds = [SamplingParameters(temperature=temperature, seed=i) for i in range(len(prompts))]
        n_tokens = arguments.max_tokens + DEPTH
        plan = FixedPlan(SPECEXEC.plan(16, 8))
        texts = [written(engine, prompt, seeded, n_tokens, plan) for prompt, seeded in zip(prompts, seeds, strict=True)]
        engine.reset()
        by_method: dict[str, dict[int, float]] = rows.setdefault(f"{temperature:g}", {})
        for n in arguments.budgets:
            limits = DraftLimits(n, min(DEPTH, n - 1), n, arguments.leaves)
            own = free_guide(n, Calibration(calibration.counts))
            shape = sequoia.best_shape(vector, n, DEPTH, arguments.leaves)
            sums: dict[str, list[int]] = {}
            for prompt, text, seeded in zip(prompts, texts, seeds, strict=True):
                for name, (drafter, guide) in growers(engine, seeded, shape, n, own).items():
                    if name not in (arguments.methods or [name]):
                        continue
                    tokens, passes = tokens_a_pass(drafter, guide, limits, prompt, text)
                    so_far = sums.setdefault(name, [0, 0])
                    sums[name] = [so_far[0] + tokens, so_far[1] + passes]
            for name, (tokens, passes) in sums.items():
                by_method.setdefault(name, {})[n] = tokens / passes
            if temperature and "Sequoia, whole" in (arguments.methods or ["Sequoia, whole"]):
                rate = of_sequoias_rule(engine, prompts, sampling, vector, n, arguments.max_tokens + DEPTH)
                by_method.setdefault("Sequoia, whole", {})[n] = rate
            print(
                f"T={temperature:g}, {n} nodes: " + ", ".join(f"{m} {r[n]:.2f}" for m, r in by_method.items()),
                flush=True,
            )
    return rows


def markdown(rows: dict[str, dict[str, dict[int, float]]]) -> str:
    """A table for each temperature."""
    lines = []
    for temperature, by_method in rows.items():
        budgets = list(next(iter(by_method.values())))
        lines.append(
            f"\n| {'greedy' if temperature == '0' else f'T={temperature}'} | " + " | ".join(map(str, budgets)) + " |"
        )
        lines.append("| --- |" + " ---: |" * len(budgets))
        lines += [f"| {name} | " + " | ".join(f"{r[n]:.2f}" for n in budgets) + " |" for name, r in by_method.items()]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--budgets", type=lambda text: [int(n) for n in text.split(",")], default=list(BUDGETS))
    parser.add_argument("--temps", type=lambda text: [float(t) for t in text.split(",")], default=[0.0, 0.8])
    parser.add_argument("--methods", nargs="+", metavar="NAME", help="rows of the table; all by default")
    parser.add_argument("--leaves", type=int, default=MAX_LEAVES, help="most leaf paths of a tree")
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    with Model(RunOptions(embedded.TARGET, embedded.DRAFT, (SPECEXEC.plan(max(arguments.budgets), DEPTH),))) as model:
        rows = measure(model, arguments)
    print(markdown(rows))
    if arguments.output:
        arguments.output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
