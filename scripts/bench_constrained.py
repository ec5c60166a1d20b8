"""Constrained output with speculation against without: tokens a second and a pass, by plan.

    python scripts/bench_constrained.py [--target T --draft D] [--temp 0] [--max-tokens 400]

Eight prompts, each answered by one JSON schema to its end; plans take turns on every prompt: off, a chain of 4, a tree
of 16, and, if `specrun tune` has measured the pair, the adaptive tree with and without draft sources. All texts must
parse, and be the same by every plan. Without --target: the embedded pair. With a model larger than memory, put
`python scripts/capped.py SIZE --` in front.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specrun.catalog import embedded
from specrun.constraints.json_schema import schema_to_gbnf
from specrun.decoding.generation import Request
from specrun.decoding.tree_shapes import by_profile
from specrun.loading.model import Model
from specrun.loading.run_options import RunOptions, identity_of
from specrun.profiles import profile_files
from specrun.sampling import SamplingParameters
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.cost_aware import ADAPTIVE, MERGED
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF, Plan

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 20},
        "kind": {"enum": ["function", "class", "module"]},
        "args": {
            "type": "array",
            "maxItems": 3,
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "maxLength": 12},
                    "size": {"type": "integer", "minimum": 0, "maximum": 64},
                },
                "required": ["name", "size"],
            },
        },
        "doc": {"anyOf": [{"type": "string", "maxLength": 40}, {"type": "null"}]},
        "public": {"type": "boolean"},
        "weight": {"type": "number"},
    },
    "required": ["name", "kind", "args", "doc", "weight"],
}
PROMPTS = (
    "def read_config(path):",
    "class Queue:",
    "import os\n\ndef walk(top):",
    "def parse_args(argv):",
    "# Sort the words of a text",
    "def send(self, data):",
    "class Error(Exception):",
    "def mean(values):",
)


@dataclass
class Row:
    """What a plan did, all prompts together."""

    plan: Plan
    tokens: int = 0
    passes: int = 0
    seconds: float = 0.0

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds


def plans(options: RunOptions, temperature: float) -> list[Plan]:
    """Off first."""
    found = [OFF.plan(), CHAIN.plan(depth=4), SPECEXEC.plan(16, 8)]
    if options.profile:
        found += [
            by_profile(method.plan(), options.profile, temperature, is_open=True) for method in (ADAPTIVE, MERGED)
        ]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, default=embedded.TARGET)
    parser.add_argument("--draft", type=Path, default=embedded.DRAFT)
    parser.add_argument("--temp", type=float, default=0.0)
    parser.add_argument("--max-tokens", type=int, default=400)
    arguments = parser.parse_args()
    options = RunOptions(arguments.target, arguments.draft, (OFF.plan(),), follow=False)
    options = replace(options, profile=profile_files.find(identity_of(options), print))
    rows = [Row(plan) for plan in plans(options, arguments.temp)]
    options = replace(options, plans=tuple(row.plan for row in rows))
    sampling = SamplingParameters(temperature=arguments.temp)
    gbnf = schema_to_gbnf(SCHEMA)
    with Model(options) as model:
        for prompt in PROMPTS:
            request = Request(model.prompt_tokens(prompt), sampling, arguments.max_tokens, gbnf=gbnf)
            texts = []
            for row in rows:
                model.forget()
                written = model.complete(request, model.plans.fixed(row.plan, arguments.temp)).run()
                json.loads(written.text)
                texts.append(written.text)
                row.tokens += written.statistics.completion_tokens
                row.passes += written.statistics.passes
                row.seconds += written.statistics.seconds
            if len(set(texts)) > 1:
                raise SystemExit(f"the texts after {prompt!r} differ: {texts}")
    print("| plan | tokens/s | ratio to off | tokens a pass |")
    print("| --- | ---: | ---: | ---: |")
    for row in rows:
        ratio = row.tokens_per_second / rows[0].tokens_per_second
        print(f"| {row.plan} | {row.tokens_per_second:.2f} | **{ratio:.2f}** | {row.tokens / row.passes:.2f} |")


if __name__ == "__main__":
    main()
