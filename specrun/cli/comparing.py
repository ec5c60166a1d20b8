"""Commands that compare plans on the user's own pair: `specrun bench` their speeds, `specrun verify` their texts; and
`specrun methods`, which lists what `--method` can name.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from specrun.errors import UsageError, VerificationError
from specrun.interrupts import InterruptFlag
from specrun.options.expand import expanded, flag, option
from specrun.options.machine_options import MachineOptions
from specrun.options.sampling_options import TokenOptions, raw_option, sampling_parameters, temp_option, temperatures_in
from specrun.options.speculation_options import ModelOptions, SpeculationOptions
from specrun.views import output

if TYPE_CHECKING:
    from specrun.verifying.findings import Divergence, Finding


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
    raw: bool = raw_option()
    form: Literal["table", "md", "json"] = option(
        "table", "table|md|json", "Format of the result on stdout.", "--output", "-o"
    )
# fmt: on


@dataclass(frozen=True)
class BenchSampling(TokenOptions):
    """How answers are written. They are greedy by default."""

    temp: float = temp_option(0.0)
    max_tokens: int = option(64, "N", "Tokens of every answer.", "-n")


@expanded
def bench(*, models: ModelOptions, what: BenchOptions, sampling: BenchSampling, machine: MachineOptions) -> None:
    """Measure plans against plain decoding, on your own pair.

    The best chain and the best tree are chosen on the first prompt of each kind, which is also the warm-up, and all
    rows are measured on the others, in turn. The KV caches are emptied before each. All rows write the same tokens. A
    ratio is the median of those to plain decoding in the same turn, and may differ from that of the median rates.

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
    texts = load(what.prompts) if what.prompts else shipped(_listed(what.kinds, KINDS, "--kinds"))
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


_STYLES = {"near-tie": "yellow", "different": "bold red", "other distribution": "bold red"}
_LEAST_SAMPLES = 20  # with fewer, a beginning of an answer is hardly ever expected five times


@dataclass(frozen=True)
class VerifyOptions:
    """What is compared, as the user gave it."""

    prompts: Path | None = option(None, "FILE", 'Your own prompts: JSONL of {"prompt"}. By default six shipped ones.')
    temp: str = option("0,0.8", "LIST", "Temperatures: 0 always takes the likeliest token.")
    max_tokens: int = option(64, "N", "Most tokens of every text.", "-n")
    samples: int = option(400, "N", "Seeds for the test of a --method that keeps only the distribution.")
    raw: bool = raw_option()
    json: bool = flag("A JSON list of objects, one for each text.")


@expanded
def verify(
    *,
    models: ModelOptions,
    what: VerifyOptions,
    speculation: SpeculationOptions,
    sampling: TokenOptions,
    machine: MachineOptions,
) -> None:
    """See whether it changes the answers: texts with and without speculation.

    Where two texts part, the target's own logits say by how much. How far the size of a pass moves logits is measured
    too: a smaller gap is a near-tie that rounding decided, a larger gap is an error and ends with exit code 11. With
    --exact every difference is an error. With auto, a plan that drafts in every pass is compared as well.

        specrun verify --target qwen-14b
        specrun verify --target qwen-14b --temp 0 --exact
    """
    from specrun.bench import KINDS, load, shipped
    from specrun.cli.opening import opened
    from specrun.long_run import Run
    from specrun.verifying import findings as found
    from specrun.verifying.verifier import TREE, Verifier, VerifySettings

    if what.max_tokens < 1:
        raise UsageError(f"--max-tokens must be 1 or more; got {what.max_tokens}")
    if what.samples < _LEAST_SAMPLES:
        raise UsageError(f"--samples must be {_LEAST_SAMPLES} or more; got {what.samples}")
    temperatures = temperatures_in(what.temp)
    parameters = sampling_parameters(sampling, max(temperatures))
    plans = speculation.plans()
    if not any(plan.drafts for plan in plans):
        raise UsageError("there is nothing to compare without speculation; leave --speculate, --budget or --depth out")
    texts = load(what.prompts) if what.prompts else [shipped([kind])[0] for kind in KINDS]
    settings = VerifySettings(parameters, temperatures, what.max_tokens, what.samples, what.raw)
    largest = TREE if len(plans) > 1 else None
    with (
        opened(models, speculation, machine, max(temperatures), largest=largest, is_measured=True) as model,
        InterruptFlag(output.stopping) as interrupted,
        output.progress() as display,
    ):
        findings = list(Verifier(model, settings, Run(display, output.note, interrupted)).findings(texts))
    if what.json:
        output.write_json([finding.as_json() for finding in findings])
    else:
        output.print_table(report(findings))
        output.stdout.print(f"Does it change the answers? {found.verdict(findings)}", style="bold")
    if failures := [finding for finding in findings if finding.is_failure]:
        raise VerificationError(found.failure(failures))


def report(findings: Sequence[Finding]) -> RenderableType:
    """A row for each finding that `is_shown`, and below them both texts around every divergence."""
    right, optional = ("T", "tokens", "a pass"), ("tokens", "a pass")
    table = output.FittingTable("kind", "T", "plan", "tokens", "a pass", "result", "", right=right, optional=optional)
    shown = [finding for finding in findings if finding.is_shown]
    for finding in shown:
        rate = finding.n_tokens / max(finding.n_passes, 1)
        figures = [f"{finding.temperature:g}", finding.plan, str(finding.n_tokens), f"{rate:.1f}"]
        outcome = Text(finding.outcome, style=_STYLES.get(finding.outcome, "green"))
        table.add_row(Text(finding.kind), *figures, outcome, _reason(finding))
    return Group(*([table] if shown else ()), *(_parting(one, one.divergence) for one in shown if one.divergence))


def _reason(finding: Finding) -> str:
    if finding.test:
        return f"p-value {finding.test.p_value:.2g} over {sum(finding.test.observed)} seeds"
    if not finding.divergence:
        return ""
    where = f"token {finding.divergence.at}"
    if finding.divergence.gap is None:
        return f"{where}: one text ends"
    return f"{where}: gap {finding.divergence.gap:.3g}, explained up to {finding.divergence.explained:.3g}"


def _parting(finding: Finding, divergence: Divergence) -> Text:
    """Both texts, written as JSON strings, so that nothing in them reaches the terminal as it is."""
    head = f"\n{finding.kind}, T={finding.temperature:g}, {finding.plan}, around token {divergence.at}:"
    plain, speculated = (json.dumps(text) for text in (divergence.plain, divergence.speculated))
    return Text(f"{head}\n  plainly           {plain}\n  with speculation  {speculated}")


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
