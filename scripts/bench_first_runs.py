"""What a profile and earlier runs bring: the first run of a pair, a second one, and one after `specrun tune`.

    python scripts/bench_first_runs.py --work DIR [--pair real|embedded] [--types LIST] [--places LIST] [--temps LIST]
                                       [--each N] [-n TOKENS] [--no-plain]

Makes the models and the profiles that bench_headline.py makes, and shares its --work folder. Every run is a process of
its own that writes one text: plain decoding, `auto` with an empty data folder, `auto` with what that run learned, and
`auto` with the profile, in turn for each prompt. The rates are those of all texts together; ratios of two runs are
geometric means over the texts, with the smallest and the largest.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import real_pair
from bench_headline import PAIRS, TYPES, Bench, ensure_models

from specrun.bench import USUAL, shipped

RUNS = ("off", "first run", "second run", "tuned")
RATIOS = (("second run", "first run"), ("tuned", "first run"), ("first run", "off"), ("tuned", "off"))

Rates = Mapping[str, Sequence[tuple[int, float]]]


def texts(bench: Bench, runs: Sequence[str], prompts: Sequence[str], temperature: float, n_tokens: int) -> Rates:
    """Tokens and seconds, after the prompts, of each text of every kind of run in `runs`."""
    found: dict[str, list[tuple[int, float]]] = {run: [] for run in runs}
    for text in prompts:
        learned = bench.work / "learned"
        shutil.rmtree(learned, ignore_errors=True)
        for run in runs:
            data = bench.tuned if run == "tuned" else learned
            options = ["--speculate", "off", "--no-learn"] if run == "off" else []
            options += ["--raw"] if bench.pair == "real" else []
            options += ["--temp", f"{temperature:g}", "-n", f"{n_tokens}", "--json", text]
            answer = json.loads(bench.specrun(data, "generate", *options))
            found[run].append((answer["completion_tokens"], answer["seconds"]))
            print(f"{run}: {rate(found[run][-1:]):.2f} tokens/s, {answer['plan']}", file=sys.stderr)
        shutil.rmtree(learned)
    return found


def prompts_for(pair: str, each: int) -> list[str]:
    """So many prompts of each kind of `specrun bench`; the embedded pair, which writes code, gets those of code."""
    if pair == "embedded":
        return [prompt.text for prompt in shipped(("code",))[:each]]
    return [real_pair.chat(prompt.text) for kind in USUAL for prompt in shipped((kind,))[:each]]


def rate(found: Sequence[tuple[int, float]]) -> float:
    """Tokens a second of all texts together."""
    return sum(tokens for tokens, _ in found) / sum(seconds for _, seconds in found)


def ratio(found: Rates, one: str, other: str) -> str:
    """The rates of one kind of run relative to another's: geometric mean over the texts, smallest and largest."""
    if not {one, other} <= found.keys():
        return ""
    pairs = zip(found[one], found[other], strict=True)
    ratios = [n / seconds * others / n_other for (n, seconds), (n_other, others) in pairs]
    return f"{statistics.geometric_mean(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for the models and profiles, some gigabytes")
    parser.add_argument("--pair", choices=PAIRS, default=PAIRS[0])
    parser.add_argument("--types", default=",".join(TYPES), metavar="LIST")
    parser.add_argument("--places", default="ram,streamed", metavar="LIST")
    parser.add_argument("--temps", default="0,0.8", metavar="LIST")
    parser.add_argument("--each", type=int, default=4, metavar="N", help="prompts of each kind of text (%(default)s)")
    parser.add_argument("-n", type=int, default=256, metavar="TOKENS", help="length of every text")
    parser.add_argument("--no-plain", action="store_true", help="leave out plain decoding, which is slow when streamed")
    options = parser.parse_args()
    runs = RUNS[1:] if options.no_plain else RUNS
    columns = [f"{run}, tokens/s" for run in runs] + [f"{one} / {other}" for one, other in RATIOS]
    print(f"| weights | {' | '.join(columns)} |")
    print("| --- |" + " ---: |" * len(columns))
    temperatures = [float(t) for t in options.temps.split(",")]
    for weights in options.types.split(","):
        target, draft = ensure_models(options.work, weights, options.pair)
        for place in options.places.split(","):
            bench = Bench(weights, place, target, draft, target.parent, pair=options.pair)
            bench.tune(temperatures)
            for temperature in temperatures:
                found = texts(bench, runs, prompts_for(options.pair, options.each), temperature, options.n)
                cells = [f"{rate(found[run]):.2f}" for run in runs] + [ratio(found, *pair) for pair in RATIOS]
                name = f"{weights.upper()}, {'in RAM' if place == 'ram' else place}, T={temperature:g}"
                print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
