"""How near `auto` comes to a tuned machine at once: the first run of a pair, the second, and one with a full profile.

    python scripts/bench_first_runs.py --work DIR [--types LIST] [--places LIST] [--temps LIST] [-n TOKENS]

Makes the models and the profiles that bench_headline.py makes, and shares its --work folder. Every run is a process of
its own that writes one text: plain decoding, `auto` with an empty data folder, `auto` with
what that run learned, and `auto` with the profile, in turn for each prompt of code. The last columns are the rates of
`auto` relative to that with the profile.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from bench_headline import TYPES, Bench, ensure_models

from specrun.bench import bench_prompts

RUNS = ("off", "first run", "second run", "tuned")
KIND = "code"


def seconds_of_runs(bench: Bench, temperature: float, n_tokens: int) -> tuple[dict[str, float], dict[str, int]]:
    """Seconds behind the prompts, and tokens written in them, of every kind of run."""
    seconds, tokens = dict.fromkeys(RUNS, 0.0), dict.fromkeys(RUNS, 0)
    for prompt in bench_prompts.shipped((KIND,)):
        learned = bench.work / "learned"
        shutil.rmtree(learned, ignore_errors=True)
        for run in RUNS:
            data = bench.tuned if run == "tuned" else learned
            options = ["--speculate", "off", "--no-learn"] if run == "off" else []
            options += ["--temp", f"{temperature:g}", "-n", f"{n_tokens}", "--json", prompt.text]
            answer = json.loads(bench.specrun(data, "generate", *options))
            seconds[run] += answer["seconds"]
            tokens[run] += answer["completion_tokens"]
    shutil.rmtree(learned)
    return seconds, tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for the models and profiles, some gigabytes")
    parser.add_argument("--types", default=",".join(TYPES), metavar="LIST")
    parser.add_argument("--places", default="ram,streamed", metavar="LIST")
    parser.add_argument("--temps", default="0,0.8", metavar="LIST")
    parser.add_argument("-n", type=int, default=256, metavar="TOKENS", help="length of every text")
    options = parser.parse_args()
    print("| weights | " + " | ".join(f"{run}, tokens/s" for run in RUNS) + " | first / tuned | second / tuned |")
    print("| --- |" + " ---: |" * (len(RUNS) + 2))
    temperatures = [float(t) for t in options.temps.split(",")]
    for weights in options.types.split(","):
        target, draft = ensure_models(options.work, weights)
        for place in options.places.split(","):
            bench = Bench(weights, place, target, draft, options.work)
            bench.tune(temperatures)
            for temperature in temperatures:
                seconds, tokens = seconds_of_runs(bench, temperature, options.n)
                rates = [tokens[run] / seconds[run] for run in RUNS]
                cells = [f"{rate:.2f}" for rate in (*rates, rates[1] / rates[3], rates[2] / rates[3])]
                name = f"{weights.upper()}, {'in RAM' if place == 'ram' else place}, T={temperature:g}"
                print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
