"""`specrun verify`: whether speculation changes the answers, tried on the user's own pair."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from specrun.errors import UsageError, VerificationError
from specrun.interrupts import InterruptFlag
from specrun.options.expand import expanded, flag, option
from specrun.options.machine_options import MachineOptions
from specrun.options.sampling_options import TokenOptions, sampling_parameters, temperatures_in
from specrun.options.speculation_options import ModelOptions, SpeculationOptions
from specrun.views import output

if TYPE_CHECKING:
    from specrun.verifying.findings import Divergence, Finding

_STYLES = {"near-tie": "yellow", "different": "bold red", "other distribution": "bold red"}
_LEAST_SAMPLES = 20  # with fewer, a beginning of an answer is hardly ever expected five times


@dataclass(frozen=True)
class VerifyOptions:
    """What is compared, as the user gave it."""

    prompts: Path | None = option(None, "FILE", 'Your own prompts: JSONL of {"prompt"}. By default six shipped ones.')
    temp: str = option("0,0.8", "LIST", "Temperatures: 0 always takes the likeliest token.")
    max_tokens: int = option(64, "N", "Most tokens of every text.", "-n")
    samples: int = option(400, "N", "Seeds for the test of a --method that keeps only the distribution.")
    raw: bool = flag("No chat template: continue the prompts as they are.")
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
    from specrun import bench
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
    if what.prompts:
        texts = bench.load(what.prompts)
    else:
        texts = [bench.shipped([kind])[0] for kind in bench.KINDS]
    settings = VerifySettings(parameters, temperatures, what.max_tokens, what.samples, what.raw)
    largest = TREE if len(plans) > 1 else None
    with (
        opened(models, speculation, machine, max(temperatures), largest=largest, is_measured=True) as model,
        InterruptFlag() as interrupted,
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
    """A row for each finding, and below them both texts around every divergence."""
    right, optional = ("T", "tokens", "a pass"), ("tokens", "a pass")
    table = output.FittingTable("kind", "T", "plan", "tokens", "a pass", "result", "", right=right, optional=optional)
    for finding in findings:
        rate = finding.n_tokens / max(finding.n_passes, 1)
        figures = [f"{finding.temperature:g}", finding.plan, str(finding.n_tokens), f"{rate:.1f}"]
        outcome = Text(finding.outcome, style=_STYLES.get(finding.outcome, "green"))
        table.add_row(Text(finding.kind), *figures, outcome, _reason(finding))
    return Group(table, *(_parting(one, one.divergence) for one in findings if one.divergence))


def _reason(finding: Finding) -> str:
    if finding.test:
        return f"p-value {finding.test.p_value:.2g} over {sum(finding.test.observed)} seeds"
    if not finding.divergence:
        return "" if finding.n_drafted else "no pass drafted"
    where = f"token {finding.divergence.at}"
    if finding.divergence.gap is None:
        return f"{where}: one text ends"
    return f"{where}: gap {finding.divergence.gap:.3g}, explained up to {finding.divergence.explained:.3g}"


def _parting(finding: Finding, divergence: Divergence) -> Text:
    """Both texts, written as JSON strings, so that nothing in them reaches the terminal as it is."""
    head = f"\n{finding.kind}, T={finding.temperature:g}, {finding.plan}, around token {divergence.at}:"
    plain, speculated = (json.dumps(text) for text in (divergence.plain, divergence.speculated))
    return Text(f"{head}\n  plainly           {plain}\n  with speculation  {speculated}")
