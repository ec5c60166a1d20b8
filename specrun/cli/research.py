"""Research: `specrun bench` measures plans against plain decoding on the user's own pair, `specrun methods` lists what
`--method` can name.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from specrun.errors import UsageError
from specrun.options.expand import expanded, flag, option
from specrun.options.machine_options import MachineOptions
from specrun.options.sampling_options import Temperature, TokenOptions, sampling_parameters
from specrun.options.speculation_options import ModelOptions, SpeculationOptions
from specrun.views import output


# fmt: off
@dataclass(frozen=True)
class BenchOptions:
    """What is measured and how it is shown, as the user gave it."""

    kinds: str = option(
        "code,chat,prose,structured", "LIST", "Kinds of shipped prompts: code, chat, prose, structured, edit, summary."
    )
    prompts: Path | None = option(None, "FILE", 'Your own prompts: JSONL of {"prompt"}, or MT-bench\'s question.jsonl.')
    methods: str = option(
        "chain,tree,auto", "LIST", "Rows besides off: chain, tree, auto, names of `specrun methods`, or all."
    )
    sweep: bool = flag("Measure each row's method on a grid of budgets and depths instead.", usual=False)
    budgets: str | None = option(None, "LIST", "The grid's budgets: nodes of a tree, such as 4,16,64.", usual=False)
    depths: str | None = option(None, "LIST", "The grid's depths: drafted tokens on a path, such as 4,8.", usual=False)
    repeat: int = option(3, "N", "Repetitions of every row.")
    raw: bool = flag("No chat template: continue the prompts as they are.")
    form: Literal["table", "md", "json"] = option(
        "table", "table|md|json", "Format of the result on stdout.", "--output", "-o"
    )
# fmt: on


@dataclass(frozen=True)
class BenchSampling(TokenOptions):
    """How answers are written. They are greedy by default."""

    temp: Temperature = 0.0
    max_tokens: int = option(64, "N", "Tokens of every answer.", "-n")


@expanded
def bench(*, models: ModelOptions, what: BenchOptions, sampling: BenchSampling, machine: MachineOptions) -> None:
    """Measure plans against plain decoding, on your own pair.

    The best chain and the best tree are chosen on the first prompt of each kind, which is also the warm-up, and all
    rows are measured on the others, in turn. The KV caches are emptied before each. All rows write the same tokens.

        specrun bench --target qwen-14b
        specrun bench --target qwen-14b --kinds code --methods tree,auto
    """
    from specrun.bench import KINDS, load, rows, shipped
    from specrun.bench.runner import Bench
    from specrun.cli.opening import opened
    from specrun.long_run import Run
    from specrun.views import measurements

    if what.repeat < 1 or sampling.max_tokens < 2:
        raise UsageError("--repeat must be 1 or more and --max-tokens 2 or more")
    settings = rows.BenchSettings(
        sampling_parameters(sampling, sampling.temp),
        sampling.max_tokens,
        what.repeat,
        rows.ALL if what.methods == "all" else _listed(what.methods, rows.NAMES, "--methods"),
        _numbers(what.budgets, "--budgets", 2) if what.budgets else rows.SWEEP_BUDGETS,
        _numbers(what.depths, "--depths", 1) if what.depths else rows.SWEEP_DEPTHS,
        what.raw,
    )
    if what.prompts:
        texts = load(what.prompts)
    else:
        texts = shipped(_listed(what.kinds, KINDS, "--kinds"))
    is_sweep = what.sweep or bool(what.budgets or what.depths)
    asked = models, SpeculationOptions(learn=False), machine, sampling.temp
    largest = settings.largest_plan(is_sweep)
    with opened(*asked, largest=largest, is_fixed=True, is_measured=True) as model, output.progress() as display:
        if model.exactness.is_exact and not machine.exact:
            output.note(str(model.exactness))
        found = Bench(model, settings, Run(display, output.note)).run(texts, is_sweep)
    if what.form == "table":
        output.print_table(measurements.bench_table(found))
    else:
        output.write(measurements.bench_text(found, what.form))


def _listed(text: str, allowed: tuple[str, ...], option: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names or not set(names) <= set(allowed):
        raise UsageError(f"{option} is a list of {', '.join(allowed)}; got {text}")
    return names


def _numbers(text: str, option: str, least: int) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(map(str.isdecimal, parts)) or min(map(int, parts)) < least:
        raise UsageError(f"{option} is a list of numbers from {least} on, such as 4,16; got {text}")
    return tuple(dict.fromkeys(map(int, parts)))


_KINDS = {
    "plain": "without drafts",
    "chain": "chains",
    "tree": "trees",
    "planner": "a size for every tree",
    "draft source": "without a draft model",
    "acceptance rule": "other rules of accepting",
}


def methods(json: Annotated[bool, typer.Option("--json", help="A JSON list of objects.")] = False) -> None:
    """List the methods of drafting and accepting. The table says what each needs, where it pays, and its paper."""
    from specrun.speculation.registry import METHODS

    if json:
        keys = ("name", "paper", "kind", "needs", "lossless", "pays")
        output.write_json([{key: getattr(method, key) for key in keys} for method in METHODS.values()])
        return
    table = output.FittingTable("name", "pays", "needs", "paper", optional=("paper",))
    for kind in dict.fromkeys(method.kind for method in METHODS.values()):
        table.add_heading(_KINDS[kind])
        for method in METHODS.values():
            if method.kind == kind:
                name = method.name if method.lossless else f"{method.name} (lossy)"
                table.add_row(name, method.pays, ", ".join(method.needs), method.paper)
    output.print_table(table)
