"""What `auto` costs without a draft model where nothing pays, compared with plain decoding.

    python scripts/bench_loss.py TARGET.gguf [...] [--tokens 96] [--rounds 2]

Only draft sources can draft then. Each prompt of `specrun bench` is written plainly, twice with `auto`, and plainly
again, and the ratio of the rates counts, so that a machine that becomes slower tells nothing. Nothing is known
beforehand. Prints the median of the prompts with their quartiles, and the share of passes that drafted.
"""

from __future__ import annotations

import argparse
import statistics

import specrun
from specrun.bench import bench_prompts
from specrun.engine.model import Model
from specrun.engine.statistics import Statistics


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="+")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=2)
    asked = parser.parse_args()
    print("| target | ms a plain pass | T | auto, times plain | quartiles | tokens a pass |")
    print("| --- | --- | --- | --- | --- | --- |")
    for target in asked.targets:
        with (
            specrun.load(target, "none", learn=False) as auto,
            specrun.load(target, "none", speculate="off") as off,
        ):
            for temperature in (0.0, 0.8):
                ratios, passes, plain_ms = [], [], []
                for _ in range(asked.rounds):
                    for prompt in bench_prompts.shipped():
                        written = [write(model, prompt.text, temperature, asked.tokens) for model in (off, auto) * 2]
                        rates = [done.tokens_per_second for done in written]
                        ratios.append((rates[1] + rates[3]) / (rates[0] + rates[2]))
                        passes += [written[1].tokens_per_pass, written[3].tokens_per_pass]
                        plain_ms += [1e3 / rates[0], 1e3 / rates[2]]
                low, middle, high = statistics.quantiles(ratios, n=4)
                print(
                    f"| {target.rsplit('/', 1)[-1]} | {statistics.median(plain_ms):.1f} | {temperature:g} "
                    f"| {middle:.3f} | {low:.3f} to {high:.3f} | {statistics.mean(passes):.2f} |",
                    flush=True,
                )


def write(model: Model, prompt: str, temperature: float, n_tokens: int) -> Statistics:
    model.engine.reset()
    options = {"raw": True, "temp": temperature, "max_tokens": n_tokens, "seed": 3}
    return model.generate(prompt, **options).statistics


if __name__ == "__main__":
    main()
