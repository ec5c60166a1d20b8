"""`specrun generate`: a prompt in, a text out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specrun.cli import output
from specrun.errors import INTERRUPTED_EXIT_CODE, PromptError, UsageError
from specrun.interrupts import InterruptFlag
from specrun.options import common_options as o
from specrun.options.expand import expanded
from specrun.options.machine_options import MachineOptions
from specrun.options.model_options import ModelOptions
from specrun.views import answer_report as report

if TYPE_CHECKING:
    from specrun.cli.prompt_input import PromptLine
    from specrun.engine.completion import Completion
    from specrun.engine.loading import Runtime
    from specrun.llama.grammar import Grammar
    from specrun.sampling import SamplingParameters


@expanded
def generate(
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="The prompt; - reads stdin.", show_default=False)
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
    pull: o.Pull = False,
    speculate: o.SpeculateOption = "auto",
    method: o.Method = None,
    growth_map: o.GrowthMap = None,
    datastore: o.Datastore = None,
    history: o.History = False,
    overlap: o.Overlap = None,
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
    grammar: o.GrammarFile = None,
    json_schema: o.JsonSchemaFile = None,
    *,
    machine: MachineOptions,
) -> int:
    """Write a text that continues or answers a prompt.

    The prompt is the argument, then the files, then stdin if something is piped in. An example:

        echo 'def read_config(path):' | specrun generate --max-tokens 64 --stats
    """
    if json and jsonl:
        raise UsageError("--json and --jsonl exclude each other; choose one")
    models = ModelOptions(
        target, draft, speculate, budget, depth, machine, pull, method, growth_map, datastore, history, overlap
    )
    sampling = o.sampling_parameters(
        temp, top_k, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty, repeat_last_n, seed
    )
    limit = o.check_max_tokens(max_tokens)

    from specrun.cli import prompt_input as prompts
    from specrun.constraints import read_grammar
    from specrun.engine.loading import Runtime
    from specrun.llama.grammar import check_grammar, loaded_grammar

    # What a user gives is read before the model is loaded: what is wrong with it should not take a minute to be said.
    models.check_constrained(grammar, json_schema)
    gbnf = check_grammar(read_grammar(grammar, json_schema))
    lines = prompts.read_prompt_lines(prompt, file or []) if jsonl else None
    text = "" if jsonl else prompts.read_prompt(prompt, file or [])
    runtime_options = models.tuned(output.note, temp)
    with Runtime(runtime_options) as runtime, loaded_grammar(gbnf, runtime.model) as constraint:
        runtime.settle(temp)
        for notice in runtime.notices:
            output.note(notice)
        output.hint(report.plan_line(runtime.plans, temp))
        writer = _Writer(runtime, sampling, limit, stop or [], constraint, raw, stats)
        if lines is not None:
            return writer.write_lines(lines)
        return writer.write_object(text) if json else writer.write_text(text)


class _Writer:
    """The three forms of output."""

    def __init__(
        self,
        runtime: Runtime,
        sampling: SamplingParameters,
        max_tokens: int | None,
        stops: list[str],
        grammar: Grammar | None,
        raw: bool,
        stats: bool,
    ) -> None:
        from specrun.engine import prompt_tokens as formatting

        self._runtime = runtime
        self._sampling = sampling
        self._max_tokens = max_tokens
        self._stops = stops
        self._grammar = grammar
        self._stats = stats
        self._template = None if raw else formatting.chat_template(runtime.model)
        if self._template is None and not raw:
            output.note("the model has no chat template: continuing the prompt as it is, as with --raw")

    def write_text(self, prompt: str) -> int:
        """The answer as it is written. Returns the exit code, as the other two do."""
        completion = self._completion(prompt)
        self._run(completion, output.write)
        if not completion.text.endswith("\n"):
            output.write("\n")
        return self._end(completion)

    def write_object(self, prompt: str) -> int:
        """One JSON object."""
        completion = self._completion(prompt)
        self._run(completion)
        output.write_json(report.as_json(completion))
        return self._end(completion)

    def write_lines(self, lines: Iterable[PromptLine]) -> int:
        """One JSON object a line; a line that fails becomes an object with `error` and decides the exit code."""
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
            if self._end(completion) == INTERRUPTED_EXIT_CODE:
                return INTERRUPTED_EXIT_CODE
        return code

    def _completion(self, text: str) -> Completion:
        from specrun.engine.completion import Completion, Request
        from specrun.engine.prompt_tokens import single_turn_tokens

        tokens = single_turn_tokens(self._runtime.model, text, self._template)
        request = Request(tokens, self._sampling, self._runtime.plans, self._max_tokens, self._stops, self._grammar)
        return Completion(self._runtime.engine, request)

    def _run(self, completion: Completion, show: Callable[[str], None] = lambda _: None) -> None:
        """Write the answer to its end or to Ctrl-C, which only here waits for the pass to be over."""
        with InterruptFlag() as interrupted:
            for piece in completion.stream(interrupted):
                show(piece)

    def _end(self, completion: Completion) -> int:
        if notice := report.unfinished_notice(completion):
            output.note(notice)
        if self._stats:
            output.note(report.as_text(completion))
        elif notice := report.off_notice(completion):
            output.note(notice)
        return INTERRUPTED_EXIT_CODE if completion.finish_reason == "interrupted" else 0
