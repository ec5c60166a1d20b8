"""What `auto` costs where nothing pays, compared with plain decoding.

    python scripts/bench_loss.py TARGET.gguf [...] [--draft DRAFT.gguf] [--chat] [--each N] [--tokens 96] [--rounds 2]

Without --draft only draft sources can draft. --chat puts the prompts into the model's chat template. --each takes only
so many prompts of each kind. Each prompt of `specrun bench` is written plainly, twice with `auto`, and plainly again,
and the ratio of the rates counts, so that a machine that becomes slower tells nothing. The time in which the prompt is
read counts, as a draft may read it, too. What is known beforehand is the profile of `specrun tune`, if there is one.
Prints the median of the prompts with their quartiles, and the tokens of a pass.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import specrun
from specrun.bench import bench_prompts
from specrun.engine.model import Model
from specrun.engine.statistics import Statistics


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="+")
    parser.add_argument("--draft", default="none")
    parser.add_argument("--chat", action="store_true")
    parser.add_argument("--each", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=2)
    asked = parser.parse_args()
    print("| target | ms a plain pass | T | auto, times plain | quartiles | tokens a pass |")
    print("| --- | --- | --- | --- | --- | --- |")
    for target in asked.targets:
        with (
            specrun.load(target, asked.draft, learn=False) as auto,
            specrun.load(target, "none", speculate="off") as off,
        ):
            for temperature in (0.0, 0.8):
                ratios, passes, plain_ms = [], [], []
                for _ in range(asked.rounds):
                    prompts = [p for kind in bench_prompts.USUAL for p in bench_prompts.shipped((kind,))[: asked.each]]
                    for prompt in prompts:
                        options = {"raw": not asked.chat, "temp": temperature, "max_tokens": asked.tokens, "seed": 3}
                        written = [write(model, prompt.text, options) for model in (off, auto) * 2]
                        rates = [done.completion_tokens / (done.prefill_seconds + done.seconds) for done in written]
                        ratios.append((rates[1] + rates[3]) / (rates[0] + rates[2]))
                        passes += [written[1].tokens_per_pass, written[3].tokens_per_pass]
                        plain_ms += [1e3 / rates[0], 1e3 / rates[2]]
                low, middle, high = statistics.quantiles(ratios, n=4)
                print(
                    f"| {target.rsplit('/', 1)[-1]} | {statistics.median(plain_ms):.1f} | {temperature:g} "
                    f"| {middle:.3f} | {low:.3f} to {high:.3f} | {statistics.mean(passes):.2f} |",
                    flush=True,
                )


def write(model: Model, prompt: str, options: dict[str, Any]) -> Statistics:
    model.engine.reset()
    return model.generate(prompt, **options).statistics


if __name__ == "__main__":
    main()
