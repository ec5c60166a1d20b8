"""What a chain commits on models with recurrent layers, and how fast, beside the same chain on a model without.

    python scripts/bench_hybrids.py counts
    python scripts/bench_hybrids.py make DIR [--layers 24] [--embd 1024]
    python scripts/bench_hybrids.py plain DIR
    python scripts/capped.py 300M --evict DIR/target.gguf -- python scripts/bench_hybrids.py rates DIR

`counts` runs small models with random weights, each with a draft whose weights are a little different. It prints the
share of drafted tokens that were accepted, the tokens that a pass committed, what a chain commits at that share if each
token is accepted independently, and llama.cpp's passes for each pass that committed something.

`make` writes a Qwen3.5 with random weights in Q8_0 whose last layers add nothing, and a draft of its first layers, so
that the draft is often right and small. `plain` writes plainly, in turn, with nothing kept of a pass, with snapshots,
and with a checkpoint, and prints what a pass takes. `rates` writes a text plainly and with a chain, in turn, and prints
tokens per second: with snapshots, with a checkpoint, and as specrun chooses.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np

from specrun.decoding.generation import Generation, Request
from specrun.decoding.passes import write_alone
from specrun.decoding.statistics import Statistics
from specrun.llama_settings import LlamaSettings
from specrun.loading import run_options
from specrun.loading.model import Model
from specrun.loading.run_options import RunOptions
from specrun.sampling import SamplingParameters
from specrun.speculation.controllers.chooser import FixedPlan
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.method import OFF, Plan
from tests.hybrids import KINDS, noisy, random_qwen35, random_recurrent
from tests.models import random_llama

PROMPT = list(range(40, 80))  # token ids
SAMPLING = SamplingParameters(temperature=0.0)
WAYS = {"snapshots": True, "checkpoint": False}


def write(model: Model, plan: Plan, n_tokens: int) -> tuple[Statistics, int]:
    """Write a text; returns its statistics, and the number of llama.cpp's passes over the target after the prompt."""
    engine = model.engine
    engine.reset()
    generation = Generation(engine, Request(PROMPT, SAMPLING, n_tokens, ignore_eos=True), FixedPlan(plan))
    passes = write_alone(generation)
    next(passes)
    before = engine.target.context.n_passes - 1
    for _ in passes:
        pass
    return generation.statistics, engine.target.context.n_passes - before


@contextmanager
def keeping(snapshots: bool) -> Iterator[None]:
    """Inside the block, contexts keep snapshots where llama.cpp has them, or a checkpoint in any case."""
    bounds = {"_SNAPSHOTS_SHARE": 1e9, "_STREAMED_SNAPSHOTS_SHARE": 1e9} if snapshots else {"_MOST_ASKED_FOR": 0}
    with patch.multiple(run_options, **bounds):
        yield


def options(target: Path, draft: Path, plan: Plan) -> RunOptions:
    return RunOptions(target, draft, (plan,), ctx_size=2048, settings=LlamaSettings(threads=1))


def counts(depth: int, n_tokens: int) -> None:
    print("| target | taken back to | accepted | tokens a pass | expected | llama.cpp's passes a pass |")
    print("| --- | --- | --- | --- | --- | --- |")
    plan = CHAIN.plan(depth=depth)
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("llama", *KINDS):
            target = Path(folder) / f"{kind}.gguf"
            if kind == "llama":
                random_llama(target, n_layer=4)
            else:
                random_recurrent(target, kind)
            draft = noisy(Path(folder) / f"{kind}-draft.gguf", target)
            for way, snapshots in WAYS.items():
                with keeping(snapshots), Model(options(target, draft, plan)) as model:
                    context = model.engine.target.context
                    found, n_passes = write(model, plan, n_tokens)
                if kind == "llama":
                    way = "any cell"
                elif snapshots != bool(context.n_snapshots):
                    continue
                share = sum(found.matched) / sum(found.offered)
                expected = sum(share**i for i in range(depth + 1))
                print(
                    f"| {kind} | {way} | {share:.2f} | {found.tokens_per_pass:.2f} | {expected:.2f} "
                    f"| {n_passes / found.passes:.2f} |"
                )
                if kind == "llama":
                    break


def make(folder: Path, n_layer: int, n_embd: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    few = random_qwen35(folder / "few.gguf", n_embd=n_embd, n_layer=2)
    noisy(folder / "draft.gguf", few, 0.02)
    few.unlink()
    random_qwen35(folder / "target.gguf", n_embd=n_embd, n_layer=2, n_silent=n_layer - 2)


def plain(folder: Path, n_tokens: int, rounds: int) -> None:
    target, draft = folder / "target.gguf", folder / "draft.gguf"
    ways = [("nothing", OFF.plan(), False)]
    ways += [(f"{n} snapshots", CHAIN.plan(depth=n), True) for n in (4, 8, 16)]
    ways += [("a checkpoint", CHAIN.plan(depth=4), False)]
    found: dict[str, list[float]] = {way: [] for way, _, _ in ways}
    with ExitStack() as models:
        loaded = {}
        for way, plan, snapshots in ways:
            with keeping(snapshots):
                wanted = replace(options(target, draft, plan), settings=LlamaSettings())
                loaded[way] = models.enter_context(Model(wanted))
        for _ in range(rounds):
            for way, model in loaded.items():
                result = write(model, OFF.plan(), n_tokens)[0]
                found[way].append(1e3 * result.target_seconds / result.passes)
    print("| kept of a pass | ms a plain pass | more than with nothing kept |")
    print("| --- | --- | --- |")
    for way, ms in found.items():
        more = statistics.median(one / least for one, least in zip(ms, found["nothing"], strict=True)) - 1
        print(f"| {way} | {statistics.median(ms):.2f} | {more:+.1%} |")


def rates(folder: Path, depth: int, n_tokens: int, rounds: int) -> None:
    target, draft = folder / "target.gguf", folder / "draft.gguf"
    print("| plan | taken back to | tokens/s | tokens a pass | ms a target pass | times plain |")
    print("| --- | --- | --- | --- | --- | --- |")
    plan = CHAIN.plan(depth=depth)
    for way in (*WAYS, "as specrun chooses"):
        with keeping(WAYS[way]) if way in WAYS else nullcontext():
            model = Model(options(target, draft, plan))
        kept = model.engine.target.context.n_snapshots
        print(f"<!-- {way}: {kept} snapshots, weights {model.residency.mode}; {'; '.join(model.notices)} -->")
        with model:
            found: dict[Plan, list[Statistics]] = {OFF.plan(): [], plan: []}
            for _ in range(rounds):
                for one, results in found.items():
                    results.append(write(model, one, n_tokens)[0])
            plain = statistics.median(one.tokens_per_second for one in found[OFF.plan()])
            for one, results in found.items():
                rate = statistics.median(result.tokens_per_second for result in results)
                ms = 1e3 * float(np.median([result.target_seconds / result.passes for result in results]))
                tokens = results[0].tokens_per_pass
                print(f"| {one} | {way} | {rate:.2f} | {tokens:.2f} | {ms:.0f} | {rate / plain:.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("counts", "make", "plain", "rates"))
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--embd", type=int, default=1024)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    if asked.what == "counts":
        counts(asked.depth, asked.tokens)
    elif asked.folder is None:
        parser.error(f"{asked.what} needs a folder")
    elif asked.what == "make":
        make(asked.folder, asked.layers, asked.embd)
    elif asked.what == "plain":
        plain(asked.folder, asked.tokens, asked.rounds)
    else:
        rates(asked.folder, asked.depth, asked.tokens, asked.rounds)


if __name__ == "__main__":
    main()
