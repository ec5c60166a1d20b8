"""`specrun generate`: write the answer to a prompt, or to many."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from specrun.errors import PromptError, UsageError
from specrun.locations import typed
from specrun.options.expand import argument, expanded, flag, option
from specrun.options.machine_options import MachineOptions
from specrun.options.sampling_options import PromptCache, SamplingOptions, System, Think
from specrun.options.speculation_options import ModelOptions, SpeculationOptions
from specrun.views import answer_report, output, plain_answer

if TYPE_CHECKING:
    from specrun.cli.many_prompts import Lines
    from specrun.cli.prompt_input import PromptLine
    from specrun.loading.many import Crowd

_USUAL_BYTES = 2000  # of a prompt, where nobody knows yet how long they are
_NO_MODEL = (
    "no model is named, so the demo pair answers, which only continues Python code; name one with -m NAME "
    "(`specrun models list` shows what fits this machine)"
)


# fmt: off
@dataclass(frozen=True)
class FormOptions:
    """What goes into the model and comes out of it, as the user gave it."""

    file: list[Path] | None = option(None, "FILE", "Read the prompt from a file; - is stdin.", "-f")
    prompt: str | None = option(None, "TEXT", "The prompt, as the argument is.", "-p", usual=False)
    system: System = None
    raw: bool = flag("Continue the prompt as it is, without the model's chat template.")
    jsonl: bool = flag('Read one {"prompt": ..., "id": ...} for each line, write one JSON object for each.')
    parallel: str = option(
        "auto", "N|auto", "Texts of --jsonl that are written at a time, in shared passes. auto: as many as have room.",
        "-np", usual=False
    )
    output: Path | None = option(
        None, "FILE", "Append each answer of --jsonl to a file; the same command leaves out what is there.", "-o",
        usual=False
    )
    as_ready: bool = flag("Write the answers of --jsonl when they are ready, in any order.", usual=False)
    think: Think = "show"
    prompt_cache: PromptCache = None
    json: bool = flag("Write a JSON object with text, counts and statistics.")
    stats: bool = flag("Write statistics to stderr at the end.")
# fmt: on


@expanded
def generate(
    text: Annotated[str | None, argument("PROMPT", "The prompt; what is piped in becomes a part of it.")] = None,
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
    _check(form, text)
    given = form.prompt if text is None else text
    from specrun.cli import prompt_input
    from specrun.cli.many_prompts import answers_to, write_lines
    from specrun.cli.opening import opened
    from specrun.decoding.generation import make_request
    from specrun.decoding.prompt_states import FEWEST
    from specrun.llama import chat_template

    # All input is read before the model is loaded, so that mistakes in it are reported at once.
    speculation.check_constrained(sampling.grammar, sampling.json_schema)
    request, parallel = make_request(sampling), _parallel(form)
    prompt, lines, known = _read(form, given and typed(given, "the prompt", PromptError))
    if known == []:
        output.note('there is no line; --jsonl reads objects such as {"prompt": "..."} from stdin or -f')
        return 0
    if models.target is None:
        output.hint(_NO_MODEL)
    if not form.raw:
        chat_template.prepare()
    # What is piped in as it is may be anything. Many prompts share their beginnings in another way.
    keeps = not (form.jsonl or (form.raw and not prompt_input.is_terminal()))
    further: dict[str, Any] = {"keeps_prompts": keeps if form.prompt_cache is None else form.prompt_cache}
    if lines and parallel != 1:
        further["crowd"] = _crowd(known, form.system, request.max_tokens, parallel)
    with ExitStack() as stack:
        # What is wrong with the file of answers is told before the model is loaded.
        answers = stack.enter_context(answers_to(form.output, form.as_ready, known)) if lines else None
        model = stack.enter_context(opened(models, speculation, machine, sampling.temp, is_fixed=True, **further))
        if model.prompt_states:
            model.prompt_states.least = FEWEST  # nobody goes on with its answer
        output.hint(f"plan: {answer_report.plan_words(model.plans.at(sampling.temp), sampling.temp)}")
        if model.llama_model.chat_template is None and not form.raw:
            output.note("the model has no chat template, so the prompt is continued as it is; see --chat-template")
        writer = plain_answer.AnswerWriter(model, request, form.raw, form.system, form.think, form.stats)
        if lines and answers:
            made_from = (request, form.raw, form.system, form.think == "off")
            return write_lines(model, writer, lines, known, answers, made_from)
        return writer.write(prompt, form.json)


def _check(form: FormOptions, text: str | None) -> None:
    """Raise UsageError for options that exclude each other."""
    if form.json and form.jsonl:
        raise UsageError("--json and --jsonl exclude each other; choose one")
    if text is not None and form.prompt is not None:
        raise UsageError("the prompt is there twice, with --prompt and without; give it once")
    of_many = {
        "--parallel": form.parallel != "auto", "--output": form.output is not None, "--as-ready": form.as_ready,
    }  # fmt: skip
    for name, is_given in of_many.items():
        if is_given and not form.jsonl:
            raise UsageError(f"{name} is for many prompts; give them as lines of JSON with --jsonl")
    if form.output and str(form.output) == "-":
        raise UsageError("without --output the answers go to stdout; name a file, or leave it out")
    if form.output and form.as_ready:
        raise UsageError("--output has each answer as soon as it is ready; leave --as-ready out")


def _parallel(form: FormOptions) -> int | None:
    """The number that `--parallel` names; None for `auto`. Raises UsageError for anything else."""
    from specrun.loading.many import MOST_TEXTS

    given = form.parallel
    if given == "auto":
        return None
    if not (given.isascii() and given.isdigit() and 1 <= int(given) <= MOST_TEXTS):
        raise UsageError(f"--parallel must be auto or a number from 1 to {MOST_TEXTS}; got {given}")
    return int(given)


def _read(form: FormOptions, given: str | None) -> tuple[str, Lines | None, Sequence[PromptLine] | None]:
    """The prompt; or lines of prompts, and all of them, None if more may come. Raises PromptError."""
    from specrun.cli import prompt_input
    from specrun.cli.many_prompts import Lines

    files = form.file or []
    if not form.jsonl:
        return prompt_input.read_text(given, files), None, None
    lines = Lines(prompt_input.read_lines(given, files))
    known = lines.all()
    if given and known == []:
        raise PromptError("the argument stands before each prompt, and there is no line; give lines on stdin or -f")
    return "", lines, known


def _crowd(known: Sequence[PromptLine] | None, system: str | None, max_tokens: int | None, n: int | None) -> Crowd:
    """What is known of the texts to come. n: as `_parallel` has it."""
    from specrun.loading.many import Crowd, usual_bytes

    sizes = [len(line.prompt.encode(errors="replace")) for line in known or () if not line.error]
    usual = usual_bytes(sizes, _USUAL_BYTES) + len((system or "").encode(errors="replace"))
    return Crowd(None if known is None else len(known), usual, max_tokens, n)
