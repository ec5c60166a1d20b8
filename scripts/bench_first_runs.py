"""How near `auto` comes to a tuned machine at once: the first run of a pair, the second, and one with a full profile.

    python scripts/bench_first_runs.py --work DIR [--types LIST] [--places LIST] [--temps LIST] [-n TOKENS] [--no-plain]

Makes the models and the profiles that bench_headline.py makes, and shares its --work folder. Every run is a process of
its own that writes one text: plain decoding, `auto` with an empty data folder, `auto` with
what that run learned, and `auto` with the profile, in turn for each prompt of code. The last columns are the rates of
`auto` relative to that with the profile.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from bench_headline import TYPES, Bench, ensure_models

from specrun.bench import bench_prompts

RUNS = ("off", "first run", "second run", "tuned")
KIND = "code"


def rates_of_runs(bench: Bench, runs: Sequence[str], temperature: float, n_tokens: int) -> dict[str, float]:
    """Tokens a second, after the prompts, of every kind of run in `runs`."""
    seconds, tokens = dict.fromkeys(runs, 0.0), dict.fromkeys(runs, 0)
    for prompt in bench_prompts.shipped((KIND,)):
        learned = bench.work / "learned"
        shutil.rmtree(learned, ignore_errors=True)
        for run in runs:
            data = bench.tuned if run == "tuned" else learned
            options = ["--speculate", "off", "--no-learn"] if run == "off" else []
            options += ["--temp", f"{temperature:g}", "-n", f"{n_tokens}", "--json", prompt.text]
            answer = json.loads(bench.specrun(data, "generate", *options))
            seconds[run] += answer["seconds"]
            tokens[run] += answer["completion_tokens"]
    shutil.rmtree(learned)
    return {run: tokens[run] / seconds[run] for run in runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for the models and profiles, some gigabytes")
    parser.add_argument("--types", default=",".join(TYPES), metavar="LIST")
    parser.add_argument("--places", default="ram,streamed", metavar="LIST")
    parser.add_argument("--temps", default="0,0.8", metavar="LIST")
    parser.add_argument("-n", type=int, default=256, metavar="TOKENS", help="length of every text")
    parser.add_argument("--no-plain", action="store_true", help="leave out plain decoding, which is slow when streamed")
    options = parser.parse_args()
    runs = RUNS[1:] if options.no_plain else RUNS
    print("| weights | " + " | ".join(f"{run}, tokens/s" for run in runs) + " | first / tuned | second / tuned |")
    print("| --- |" + " ---: |" * (len(runs) + 2))
    temperatures = [float(t) for t in options.temps.split(",")]
    for weights in options.types.split(","):
        target, draft = ensure_models(options.work, weights)
        for place in options.places.split(","):
            bench = Bench(weights, place, target, draft, options.work)
            bench.tune(temperatures)
            for temperature in temperatures:
                rates = rates_of_runs(bench, runs, temperature, options.n)
                relative = [rates[run] / rates["tuned"] for run in ("first run", "second run")]
                cells = [f"{rate:.2f}" for rate in (*rates.values(), *relative)]
                name = f"{weights.upper()}, {'in RAM' if place == 'ram' else place}, T={temperature:g}"
                print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
