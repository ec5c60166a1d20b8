"""`specrun generate`: write the answer to a prompt, or to many."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specrun import interrupts
from specrun.cli import output
from specrun.errors import INTERRUPTED_EXIT_CODE, PromptError, UsageError
from specrun.interrupts import InterruptFlag, is_ending
from specrun.options.expand import expanded
from specrun.options.machine_options import MachineOptions
from specrun.options.model_options import ModelOptions
from specrun.options.sampling_options import SamplingOptions
from specrun.options.speculation_options import SpeculationOptions
from specrun.views import answer_report as report

if TYPE_CHECKING:
    from specrun.cli.prompt_input import PromptLine
    from specrun.engine.completion import Completion
    from specrun.engine.model import Model
    from specrun.engine.request import Request


@expanded
def generate(
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="The prompt; - reads it from stdin.", show_default=False)
    ] = None,
    file: Annotated[
        list[Path] | None, typer.Option("--file", "-f", metavar="FILE", help="Read the prompt from a file; - is stdin.")
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the prompt as it is, without the model's chat template.")
    ] = False,
    jsonl: Annotated[
        bool,
        typer.Option(
            "--jsonl", help='Read one {"prompt": ..., "id": ...} for each line, write one JSON object for each.'
        ),
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Write one JSON object with text, counts and statistics.")
    ] = False,
    stats: Annotated[bool, typer.Option("--stats", help="Write statistics to stderr at the end.")] = False,
    *,
    models: ModelOptions,
    speculation: SpeculationOptions,
    sampling: SamplingOptions,
    machine: MachineOptions,
) -> int:
    """Write a text that answers or continues a prompt.

    The prompt is the argument, followed by the files, followed by stdin if something is piped in. An example:

        echo 'def read_config(path):' | specrun generate --max-tokens 64 --stats
    """
    if json and jsonl:
        raise UsageError("--json and --jsonl exclude each other; choose one")
    from specrun.cli import prompt_input, unusable_gpu
    from specrun.cli.pulling import AskingFetcher
    from specrun.engine.opening import open_model
    from specrun.engine.request import make_request
    from specrun.llama import chat_template

    # All input is read before the model is loaded, so that mistakes in it are reported at once.
    speculation.check_constrained(sampling.grammar, sampling.json_schema)
    request = make_request(sampling)
    lines = prompt_input.read_prompt_lines(prompt, file or []) if jsonl else None
    text = "" if jsonl else prompt_input.read_prompt(prompt, file or [])
    fetcher = AskingFetcher(models.pull)
    if not raw:
        chat_template.prepare()
    with open_model(
        models, speculation, machine, sampling.temp, fetcher, output.note, progress=output.progress
    ) as model:
        plans = model.plans.at(sampling.temp)
        for notice in model.notices:
            output.note(notice)
        unusable_gpu.say_once()
        output.hint(report.plan_line(plans, sampling.temp))
        if model.llama_model.chat_template is None and not raw:
            output.note("the model has no chat template, so the prompt is continued as it is, as with --raw")
        writer = _Writer(model, request, raw, stats)
        if lines is not None:
            return writer.write_lines(lines)
        return writer.write_object(text) if json else writer.write_text(text)


class _Writer:
    """Writes answers in the three forms of output: text, one JSON object, or JSON lines."""

    def __init__(self, model: Model, request: Request, raw: bool, stats: bool) -> None:
        self._model = model
        self._request = request
        self._raw = raw
        self._stats = stats
        self._weights_notice: str | None = None  # the last one

    def write_text(self, prompt: str) -> int:
        """Write the answer to stdout piece by piece. Returns the exit code, as the other two methods do."""
        completion = self._completion(prompt)

        def end_line() -> None:
            if completion.text and not completion.text.endswith("\n"):
                output.write("\n")

        with interrupts.undone(end_line):
            self._run(completion, output.write)
        if not completion.text.endswith("\n"):
            output.write("\n")
        return self._end(completion)

    def write_object(self, prompt: str) -> int:
        """Write the answer as one JSON object."""
        completion = self._completion(prompt)
        self._run(completion)
        output.write_json(report.as_json(completion))
        return self._end(completion)

    def write_lines(self, lines: Iterable[PromptLine]) -> int:
        """Write one JSON object for each line. A line that fails gets one with `error` and decides the exit code."""
        code = 0
        for line in lines:
            try:
                if line.error:
                    raise PromptError(line.error)
                completion = self._completion(line.prompt)
                self._run(completion)
            except PromptError as error:
                output.write_json({"id": line.id, "error": str(error)})
                code = error.exit_code
                continue
            output.write_json({"id": line.id, **report.as_json(completion)})
            if self._end(completion) == INTERRUPTED_EXIT_CODE or is_ending():
                return INTERRUPTED_EXIT_CODE
        return code

    def _completion(self, text: str) -> Completion:
        return self._model.complete(replace(self._request, prompt=self._model.prompt_tokens(text, self._raw)))

    def _run(self, completion: Completion, show: Callable[[str], None] | None = None) -> None:
        """Write the answer, and give each piece to `show`. Ctrl-C ends the answer after the pass that is running.

        A line on a terminal says how far it is: until the first piece is shown, or all the time if none is.
        """
        started = time.perf_counter()
        with InterruptFlag() as interrupted:
            pieces = completion.stream(interrupted)
            with output.activity(lambda: report.status(completion, started)):
                first = next(pieces, "") if show else "".join(pieces)
            if show:
                show(first)
                for piece in pieces:
                    show(piece)

    def _end(self, completion: Completion) -> int:
        if notice := report.unfinished_notice(completion):
            output.note(notice)
        weights_notice = self._model.weights_notice
        if weights_notice and weights_notice != self._weights_notice:
            output.note(weights_notice)
        self._weights_notice = weights_notice
        if self._stats:
            output.note(report.as_text(completion, self._model))
        elif notice := report.off_notice(completion):
            output.note(notice)
        return INTERRUPTED_EXIT_CODE if completion.finish_reason == "interrupted" else 0
