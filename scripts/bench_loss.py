"""What `auto` costs where nothing pays, compared with plain decoding.

    python scripts/bench_loss.py TARGET.gguf [...] [--draft DRAFT.gguf] [--chat] [--kinds LIST] [--each N] [--tokens 96]
        [--rounds 2] [--ctx-size 4096]

Without --draft only draft sources can draft. --chat puts the prompts into the model's chat template. --each takes only
so many prompts of each kind. Each prompt of `specrun bench` is written plainly and with `auto`, twice in turn, by the
same model, which forgets what it wrote, and the ratio of the rates counts, so that a machine or a disk that becomes
slower tells nothing. The time in which the prompt is read counts, as a draft may read it, too. What is known beforehand
is the profile of `specrun tune`, if there is one. Prints the median of the prompts with their quartiles, and the tokens
of a pass.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace

import specrun
from specrun.bench import USUAL, shipped
from specrun.decoding.generation import Request, make_request
from specrun.decoding.statistics import Statistics
from specrun.loading.model import Model
from specrun.options.sampling_options import SamplingOptions
from specrun.speculation.controllers.chooser import FixedPlan, PlanChooser
from specrun.speculation.method import OFF


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="+")
    parser.add_argument("--draft", default="none")
    parser.add_argument("--chat", action="store_true")
    parser.add_argument("--kinds", default=",".join(USUAL))
    parser.add_argument("--each", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--ctx-size", type=int, default=4096)
    asked = parser.parse_args()
    prompts = [one for kind in asked.kinds.split(",") for one in shipped((kind,))[: asked.each]]
    print("| target | ms a plain pass | T | auto, times plain | quartiles | tokens a pass |")
    print("| --- | --- | --- | --- | --- | --- |")
    for target in asked.targets:
        with specrun.load(target, asked.draft, learn=False, ctx_size=asked.ctx_size) as model:
            for temperature in (0.0, 0.8):
                ratios, passes, plain_ms = [], [], []
                for prompt in prompts * asked.rounds:
                    tokens = model.prompt_tokens(prompt.text, raw=not asked.chat)
                    sampling = SamplingOptions(temp=temperature, max_tokens=asked.tokens, seed=3)
                    request = replace(make_request(sampling), prompt=tokens)
                    written = [write(model, request, plans) for plans in (FixedPlan(OFF.plan()), None) * 2]
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


def write(model: Model, request: Request, plans: PlanChooser | None) -> Statistics:
    """Write a text. plans: None for those of `auto`."""
    model.forget()
    return model.complete(request, plans).run().statistics


if __name__ == "__main__":
    main()
