"""`specrun verify`: whether speculation changes the answers, tried on the user's own pair."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specrun.cli import output
from specrun.errors import UsageError, VerificationError
from specrun.interrupts import InterruptFlag
from specrun.options.expand import expanded
from specrun.options.machine_options import MachineOptions
from specrun.options.model_options import ModelOptions
from specrun.options.sampling_options import MinP, Seed, TopK, TopP, settled_seed
from specrun.options.speculation_options import SpeculationOptions

if TYPE_CHECKING:
    from specrun.bench.bench_prompts import BenchPrompt

_LEAST_SAMPLES = 20  # with fewer, a beginning of an answer is hardly ever expected five times


@dataclass(frozen=True)
class VerifyOptions:
    """What is compared, as the user gave it."""

    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help='Your own prompts: JSONL of {"prompt"}. By default a shipped one of each of six kinds of text.',
            show_default=False,
        ),
    ] = None
    temp: Annotated[
        str, typer.Option("--temp", metavar="LIST", help="Temperatures: 0 always takes the likeliest token.")
    ] = "0,0.8"
    max_tokens: Annotated[int, typer.Option("--max-tokens", "-n", metavar="N", help="Most tokens of every text.")] = 64
    samples: Annotated[
        int,
        typer.Option(
            "--samples", metavar="N", help="Seeds for the test of a --method that keeps only the distribution."
        ),
    ] = 400
    top_k: TopK = 40
    top_p: TopP = 0.95
    min_p: MinP = 0.05
    seed: Seed = 0
    raw: Annotated[bool, typer.Option("--raw", help="No chat template: continue the prompts as they are.")] = False


@expanded
def verify(
    *,
    what: VerifyOptions,
    json: Annotated[bool, typer.Option("--json", help="A JSON list of objects, one for each text.")] = False,
    models: ModelOptions,
    speculation: SpeculationOptions,
    machine: MachineOptions,
) -> None:
    """Does it change the answers? Writes the same texts with and without speculation, and compares them.

    Where two texts part, the target's own logits say by how much. It is measured how far the size of a pass moves the
    logits: a smaller gap is a near-tie that rounding decided, a larger one is an error and ends with exit code 11. With
    --exact every difference is an error. With auto, a plan that drafts in every pass is compared as well.
    """
    from specrun.cli.pulling import AskingFetcher
    from specrun.engine.opening import open_model
    from specrun.long_run import Run
    from specrun.sampling import SamplingParameters
    from specrun.verifying import findings as found
    from specrun.verifying.verifier import TREE, Verifier, VerifySettings
    from specrun.views import verify_report

    if what.max_tokens < 1:
        raise UsageError(f"--max-tokens must be 1 or more; got {what.max_tokens}")
    if what.samples < _LEAST_SAMPLES:
        raise UsageError(f"--samples must be {_LEAST_SAMPLES} or more; got {what.samples}")
    temperatures = _temperatures(what.temp)
    sampling = SamplingParameters(max(temperatures), what.top_k, what.top_p, what.min_p, seed=settled_seed(what.seed))
    if not any(plan.drafts for plan in speculation.plans()):
        raise UsageError("there is nothing to compare without speculation; leave --speculate, --budget or --depth out")
    texts = _prompts(what.prompts)
    settings = VerifySettings(sampling, temperatures, what.max_tokens, what.samples, what.raw)
    opened = models, speculation, machine, max(temperatures), AskingFetcher(models.pull), output.note
    with (
        open_model(*opened, TREE if len(speculation.plans()) > 1 else None, output.progress) as model,
        InterruptFlag() as interrupted,
        output.progress() as display,
    ):
        for notice in model.notices:
            output.note(notice)
        run = Run(display, output.note, interrupted)
        findings = list(Verifier(model, settings, run).findings(texts))
    if json:
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


def _prompts(path: Path | None) -> list[BenchPrompt]:
    from specrun.bench import bench_prompts

    if path:
        return bench_prompts.load(path)
    first_of_kind = {prompt.kind: prompt for prompt in reversed(bench_prompts.shipped(bench_prompts.KINDS))}
    return [first_of_kind[kind] for kind in bench_prompts.KINDS]
