"""`specrun generate`: write the answer to a prompt, or to many."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specrun.errors import INTERRUPTED_EXIT_CODE, PromptError, UsageError
from specrun.interrupts import is_ending
from specrun.locations import typed
from specrun.options.expand import expanded, flag, option
from specrun.options.machine_options import MachineOptions
from specrun.options.model_options import ModelOptions
from specrun.options.sampling_options import SamplingOptions, System, Think
from specrun.options.speculation_options import SpeculationOptions
from specrun.views import answer_report, output

if TYPE_CHECKING:
    from specrun.cli.prompt_input import PromptLine


@dataclass(frozen=True)
class FormOptions:
    """What goes into the model and comes out of it, as the user gave it."""

    file: list[Path] | None = option(None, "FILE", "Read the prompt from a file; - is stdin.", "-f")
    prompt: str | None = option(None, "TEXT", "The prompt, as the argument is.", "-p", usual=False)
    system: System = None
    raw: bool = flag("Continue the prompt as it is, without the model's chat template.")
    jsonl: bool = flag('Read one {"prompt": ..., "id": ...} for each line, write one JSON object for each.')
    think: Think = "show"
    json: bool = flag("Write a JSON object with text, counts and statistics.")
    stats: bool = flag("Write statistics to stderr at the end.")


@expanded
def generate(
    text: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", help="The prompt; what is piped in becomes a part of it.", show_default=False),
    ] = None,
    *,
    models: ModelOptions,
    form: FormOptions,
    speculation: SpeculationOptions,
    sampling: SamplingOptions,
    machine: MachineOptions,
) -> int:
    """Write a text that answers or continues a prompt.

    The prompt is the argument, followed by the files, followed by stdin if something is piped in: all of that is one
    prompt. With --jsonl each line of it is one. What the model thinks before it answers goes to stderr.

        echo 'def read_config(path):' | specrun generate --max-tokens 64 --stats
        specrun generate "A limerick about trees" --target qwen-14b
    """
    if form.json and form.jsonl:
        raise UsageError("--json and --jsonl exclude each other; choose one")
    if text is not None and form.prompt is not None:
        raise UsageError("the prompt is there twice, with --prompt and without; give it once")
    given = form.prompt if text is None else text
    given = given and typed(given, "the prompt", PromptError)
    from specrun.cli import prompt_input
    from specrun.cli.opening import opened
    from specrun.engine.request import make_request
    from specrun.llama import chat_template

    # All input is read before the model is loaded, so that mistakes in it are reported at once.
    speculation.check_constrained(sampling.grammar, sampling.json_schema)
    request = make_request(sampling)
    files = form.file or []
    lines = prompt_input.read_lines(given, files) if form.jsonl else None
    prompt = "" if form.jsonl else prompt_input.read_text(given, files)
    if models.target is None:
        output.hint(
            "no model is named, so the demo pair answers, which only continues Python code; name one with -m NAME "
            "(`specrun models list` shows what fits this machine)"
        )
    if not form.raw:
        chat_template.prepare()
    with opened(models, speculation, machine, sampling.temp, is_fixed=True) as model:
        output.hint(f"plan: {answer_report.plan_words(model.plans.at(sampling.temp), sampling.temp)}")
        if model.llama_model.chat_template is None and not form.raw:
            output.note("the model has no chat template, so the prompt is continued as it is; see --chat-template")
        writer = answer_report.AnswerWriter(model, request, form.raw, form.system, form.think, form.stats)
        if lines is not None:
            return _write_lines(lines, writer)
        return writer.write_object(prompt) if form.json else writer.write_text(prompt)


def _write_lines(lines: Iterable[PromptLine], writer: answer_report.AnswerWriter) -> int:
    """Write one JSON object for each line. A line that fails gets an object with `error` and decides the exit code."""
    code = 0
    for line in lines:
        try:
            if line.error:
                raise PromptError(line.error)
            interrupted = writer.write_object(line.prompt, id=line.id)
        except PromptError as error:
            output.write_json({"id": line.id, "error": str(error)})
            code = error.exit_code
            continue
        if interrupted or is_ending():
            return INTERRUPTED_EXIT_CODE
    return code
