"""`specrun generate`: a prompt in, a text out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specrun.cli import options as o
from specrun.cli import output
from specrun.errors import INTERRUPTED_EXIT_CODE, UsageError


def generate(
    prompt: Annotated[
        str | None, typer.Argument(metavar="[PROMPT]", help="The prompt; - reads stdin.", show_default=False)
    ] = None,
    file: Annotated[
        list[Path] | None,
        typer.Option(
            "--file", "-f", metavar="FILE", help="Read the prompt from a file; - is stdin.", show_default=False
        ),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="No chat template: continue the prompt as it is.")] = False,
    jsonl: Annotated[
        bool, typer.Option("--jsonl", help='One {"prompt": ..., "id": ...} a line in, one JSON object a line out.')
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object with text, counts and statistics.")] = False,
    stats: Annotated[bool, typer.Option("--stats", help="Statistics on stderr at the end.")] = False,
    target: o.Target = None,
    draft: o.Draft = None,
    speculate: o.SpeculateOption = "auto",
    budget: o.Budget = None,
    depth: o.Depth = None,
    max_tokens: o.MaxTokens = None,
    temp: o.Temperature = 0.8,
    top_k: o.TopK = 40,
    top_p: o.TopP = 0.95,
    min_p: o.MinP = 0.05,
    repeat_penalty: o.RepeatPenalty = 1.0,
    presence_penalty: o.PresencePenalty = 0.0,
    frequency_penalty: o.FrequencyPenalty = 0.0,
    repeat_last_n: o.RepeatLastN = 64,
    seed: o.Seed = 0,
    stop: o.Stop = None,
    ctx_size: o.CtxSize = None,
    threads: o.Threads = None,
    gpu_layers: o.GpuLayers = 0,
    gpu_layers_draft: o.GpuLayersDraft = 0,
) -> int:
    """Write a text that continues or answers a prompt.

    The prompt is the argument, then the files, then stdin if something is piped in.

        echo 'def read_config(path):' | specrun generate --max-tokens 64 --stats
    """
    if json and jsonl:
        raise UsageError("--json and --jsonl exclude each other; choose one")
    models = o.ModelOptions(target, draft, speculate, budget, depth, ctx_size, threads, gpu_layers, gpu_layers_draft)
    sampling = o.sampling_parameters(
        temp, top_k, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty, repeat_last_n, seed
    )
    limit = o.check_max_tokens(max_tokens)

    from specrun.generation import Generator, prompts
    from specrun.interrupts import InterruptFlag
    from specrun.runtime import Runtime

    jobs = prompts.read_jsonl(prompt, file or []) if jsonl else [prompts.read_text(prompt, file or [])]
    with Runtime(models.runtime_options()) as runtime, InterruptFlag() as interrupted:
        for notice in runtime.notices:
            output.note(notice)
        generator = Generator(runtime, sampling, limit, stop or [], raw, interrupted)
        if jsonl:
            failures = 0
            for result in generator.jsonl(jobs):
                output.write(result.line + "\n")
    return INTERRUPTED_EXIT_CODE if interrupted() else 0
