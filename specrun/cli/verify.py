"""`specrun verify`: whether speculation changes the answers, tried on the user's own pair."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from specrun.errors import UsageError, VerificationError
from specrun.interrupts import InterruptFlag
from specrun.options.expand import expanded
from specrun.options.machine_options import MachineOptions
from specrun.options.model_options import ModelOptions
from specrun.options.sampling_options import TokenOptions, sampling_parameters
from specrun.options.speculation_options import SpeculationOptions
from specrun.views import output

_LEAST_SAMPLES = 20  # with fewer, a beginning of an answer is hardly ever expected five times


# fmt: off
@dataclass(frozen=True)
class VerifyOptions:
    """What is compared, as the user gave it."""

    prompts: Annotated[Path | None, typer.Option(
        metavar="FILE", show_default=False,
        help='Your own prompts: JSONL of {"prompt"}. By default a prompt that is shipped for each of six kinds of text.'
    )] = None
    temp: Annotated[str, typer.Option(
        "--temp", metavar="LIST", help="Temperatures: 0 always takes the likeliest token."
    )] = "0,0.8"
    max_tokens: Annotated[int, typer.Option("--max-tokens", "-n", metavar="N", help="Most tokens of every text.")] = 64
    samples: Annotated[int, typer.Option(
        "--samples", metavar="N", help="Seeds for the test of a --method that keeps only the distribution."
    )] = 400
    raw: Annotated[bool, typer.Option("--raw", help="No chat template: continue the prompts as they are.")] = False
    json: Annotated[bool, typer.Option("--json", help="A JSON list of objects, one for each text.")] = False
# fmt: on


@expanded
def verify(
    *,
    what: VerifyOptions,
    models: ModelOptions,
    speculation: SpeculationOptions,
    sampling: TokenOptions,
    machine: MachineOptions,
) -> None:
    """Does it change the answers? Writes the same texts with and without speculation, and compares them.

    Where two texts part, the target's own logits say by how much. How far the size of a pass moves logits is measured
    too: a smaller gap is a near-tie that rounding decided, a larger gap is an error and ends with exit code 11. With
    --exact every difference is an error. With auto, a plan that drafts in every pass is compared as well.
    """
    from specrun.bench import bench_prompts
    from specrun.cli.opening import opened
    from specrun.long_run import Run
    from specrun.verifying import findings as found
    from specrun.verifying.verifier import TREE, Verifier, VerifySettings
    from specrun.views import verify_report

    if what.max_tokens < 1:
        raise UsageError(f"--max-tokens must be 1 or more; got {what.max_tokens}")
    if what.samples < _LEAST_SAMPLES:
        raise UsageError(f"--samples must be {_LEAST_SAMPLES} or more; got {what.samples}")
    temperatures = _temperatures(what.temp)
    parameters = sampling_parameters(sampling, max(temperatures))
    plans = speculation.plans()
    if not any(plan.drafts for plan in plans):
        raise UsageError("there is nothing to compare without speculation; leave --speculate, --budget or --depth out")
    if what.prompts:
        texts = bench_prompts.load(what.prompts)
    else:
        texts = [bench_prompts.shipped([kind])[0] for kind in bench_prompts.KINDS]
    settings = VerifySettings(parameters, temperatures, what.max_tokens, what.samples, what.raw)
    with (
        opened(models, speculation, machine, max(temperatures), largest=TREE if len(plans) > 1 else None) as model,
        InterruptFlag() as interrupted,
        output.progress() as display,
    ):
        findings = list(Verifier(model, settings, Run(display, output.note, interrupted)).findings(texts))
    if what.json:
        output.write_json([finding.as_json() for finding in findings])
    else:
        output.print_table(verify_report.report(findings))
        verdict = f"Does it change the answers? {found.verdict(findings)}"
        output.stdout.print(verdict, style="bold", soft_wrap=not output.stdout.is_terminal)
    failures = [finding for finding in findings if finding.is_failure]
    if failures:
        raise VerificationError(found.failure(failures))


def _temperatures(text: str) -> tuple[float, ...]:
    try:
        return tuple(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError as error:
        raise UsageError(f"--temp is a list of numbers here, such as 0,0.8; got {text}") from error
