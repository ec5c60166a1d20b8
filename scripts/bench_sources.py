"""Tokens a pass with draft sources and without, by kind of text, as a machine's cost tables would have it.

    python scripts/bench_sources.py PROFILE [--kinds edit,summary,code,chat] [--max-tokens 96] [--temp 0] [--seeds 1]
        [--without NAME]

The embedded pair writes the prompts that ship with `specrun bench`; every step is weighed with the pass times
of PROFILE (an export of `specrun tune`, as in docs/benchmarks/raw), and tokens a second follow from the same times. So
the figures hang on no clock and are the same in every run; what they leave out is what a real machine does between two
passes. One thread, since the machine of the tables may be another.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path

from specrun import bench
from specrun.catalog import embedded
from specrun.decoding.generation import Generation, Request
from specrun.decoding.passes import write_alone
from specrun.llama_settings import LlamaSettings
from specrun.loading.model import Model
from specrun.loading.run_options import RunOptions
from specrun.profiles.codec import converter
from specrun.profiles.profile import Acceptance, nearest
from specrun.sampling import SamplingParameters
from specrun.speculation.controllers.chooser import FixedPlan
from specrun.speculation.drafters.cost_aware import ADAPTIVE, MERGED
from specrun.speculation.drafters.guessed import DRAFTLESS
from specrun.speculation.method import Plan
from specrun.speculation.planning.calibration import Calibration
from specrun.speculation.planning.costs import CostModel
from specrun.speculation.planning.guide import Guide, PassRecord, RunCosts

# Bounds that suit these tables, doubled where sources join in; passes take what pays.
PLANS = {
    "adaptive": ADAPTIVE.plan(16, 15, 16),
    "merged": MERGED.plan(32, 31, 16),
    "draftless": DRAFTLESS.plan(32, 31, 16),
}
ONE_THREAD = LlamaSettings(threads=1)


@dataclass
class Total:
    """What a method did on the texts of a kind, in milliseconds of the tables."""

    tokens: int = 0
    passes: int = 0
    ms: float = 0.0

    @property
    def tokens_per_pass(self) -> float:
        return self.tokens / self.passes

    @property
    def tokens_per_second(self) -> float:
        return 1e3 * self.tokens / self.ms


@dataclass(frozen=True)
class Tables:
    """What the guides of a profile rest on. calibration, rate: at the temperature that is asked for."""

    costs: CostModel
    calibration: Calibration
    rate: float

    @classmethod
    def of(cls, path: Path, temperature: float) -> Tables:
        """From a profile of any version since 2: the versions differ in other parts."""
        value = json.loads(path.read_text(encoding="utf-8"))
        acceptance = {a["temperature"]: a for a in value["acceptance"]}
        plans = {tuned["temperature"]: tuned for tuned in value["plans"]}
        tuned = plans[nearest(temperature, list(plans))]
        return cls(
            converter().structure(value["tables"], CostModel),
            converter().structure(acceptance[nearest(temperature, list(acceptance))], Acceptance).calibration,
            max(tuned["predicted_tokens_per_second"], tuned["plain_tokens_per_second"]) / 1e3,
        )


class ByTheTables(Guide):
    """A guide to which every step has taken just as long as its tables say."""

    def __init__(self, known: Tables, total: Total) -> None:
        super().__init__(RunCosts.of(known.costs), Calibration(known.calibration.counts), known.rate)
        self._tables = known.costs
        self._total = total

    def learn(self, step: PassRecord) -> None:
        """Which children were accepted; counts the step."""
        self._timed_step = self._timed(step)
        self._total.tokens += step.n_tokens
        self._total.passes += 1
        self._total.ms += self._timed_step.seconds * 1e3
        super().learn(self._timed_step)

    def follow(self, _step: PassRecord) -> None:
        """The rate of the run."""
        super().follow(self._timed_step)

    def _timed(self, step: PassRecord) -> PassRecord:
        target = self._tables.target.ms(step.n_target, step.ctx)
        draft = sum(self._tables.draft.ms(width, step.ctx) for width in step.draft.widths)
        return replace(step, target_seconds=target / 1e3, draft_seconds=draft / 1e3, seconds=(target + draft) / 1e3)


def measure(model: Model, found: Tables, kind: str, plan: Plan, arguments: argparse.Namespace) -> Total:
    """All texts of a kind, one after the other, with every seed."""
    total = Total()
    for seed in range(arguments.seeds):
        sampling = SamplingParameters(temperature=arguments.temp, seed=seed)
        for text in bench.shipped((kind,)):
            guide = ByTheTables(found, total)
            model.forget()
            tokens = model.prompt_tokens(text.text, raw=True)
            plans = FixedPlan(plan, guide)
            for _ in write_alone(
                Generation(model.engine, Request(tokens, sampling, arguments.max_tokens, ignore_eos=True), plans)
            ):
                pass
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", type=Path, metavar="PROFILE")
    parser.add_argument("--kinds", default="edit,summary,code,chat")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--temp", type=float, default=0.0)
    parser.add_argument("--seeds", type=int, default=1, help="texts after each prompt, with the seeds from 0 on")
    parser.add_argument("--without", default="", metavar="NAME", help="a draft source that is left out")
    arguments = parser.parse_args()
    for name, plan in PLANS.items():
        left = tuple(source for source in plan.method.sources if source != arguments.without)
        PLANS[name] = plan.follows(replace(plan.method, sources=left))
    found = Tables.of(arguments.profile, arguments.temp)
    options = RunOptions(
        embedded.TARGET, embedded.DRAFT, tuple(PLANS.values()), settings=ONE_THREAD, draft_settings=ONE_THREAD
    )  # fmt: skip
    print(
        "| kind | " + " | ".join(f"{m}: tok/pass | tok/s" for m in PLANS) + " | merged / adaptive: tok/pass | tok/s |"
    )
    print("| --- |" + " ---: |" * (2 * len(PLANS) + 2))
    with Model(options) as model:
        for kind in arguments.kinds.split(","):
            totals = {name: measure(model, found, kind, plan, arguments) for name, plan in PLANS.items()}
            cells = [f"{t.tokens_per_pass:.2f} | {t.tokens_per_second:.1f}" for t in totals.values()]
            merged, adaptive = totals["merged"], totals["adaptive"]
            per_pass = merged.tokens_per_pass / adaptive.tokens_per_pass
            per_second = merged.tokens_per_second / adaptive.tokens_per_second
            print(f"| {kind} | " + " | ".join(cells) + f" | **{per_pass:.2f}** | {per_second:.2f} |", flush=True)


if __name__ == "__main__":
    main()
