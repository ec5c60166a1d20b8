"""`specrun generate`: write the answer to a prompt, or to many, which are an argument, files and stdin."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

from specrun.errors import PromptError, UsageError
from specrun.locations import decode, given_json, names_file, read_bytes, typed
from specrun.options.expand import argument, expanded, flag, option, option_of
from specrun.options.machine_options import MachineOptions
from specrun.options.sampling_options import SamplingOptions, Thinking, prompt_cache_option, system_option, think_option
from specrun.options.speculation_options import ModelOptions, SpeculationOptions
from specrun.views import answer_report, output

if TYPE_CHECKING:
    from specrun.cli.answers import PromptLine
    from specrun.cli.writing import Lines
    from specrun.loading.many import Crowd

STDIN = "-"  # the name of stdin as argument or file
_OF_COMMAND = {field.name for field in fields(SamplingOptions)} | {"system", "think"}  # options that no line can have
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
    system: str | None = system_option()
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
    think: Thinking = think_option()
    prompt_cache: bool | None = prompt_cache_option()
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
    from specrun.cli.answers import AnswersFile, Printed
    from specrun.cli.opening import opened
    from specrun.cli.writing import AnswerWriter, write_lines
    from specrun.decoding.generation import make_request
    from specrun.decoding.prompt_states import FEWEST
    from specrun.llama import chat_template

    # All input is read before the model is loaded, so that mistakes in it are reported at once.
    speculation.check_constrained(sampling.grammar, sampling.json_schema)
    request, parallel = make_request(sampling), _parallel(form)
    prompt, lines = _read(form, given and typed(given, "the prompt", PromptError))
    if lines and lines.known == []:
        output.note('there is no line; --jsonl reads objects such as {"prompt": "..."} from stdin or -f')
        return 0
    if models.target is None:
        output.hint(_NO_MODEL)
    if not form.raw:
        chat_template.prepare()
    # What is piped in as it is may be anything. Many prompts share their beginnings in another way.
    keeps = not (form.jsonl or (form.raw and not _is_terminal()))
    further: dict[str, Any] = {"keeps_prompts": keeps if form.prompt_cache is None else form.prompt_cache}
    if lines and parallel != 1:
        further["crowd"] = _crowd(lines.known, form.system, request.max_tokens, parallel)
    answers: Printed | AnswersFile = Printed(form.as_ready)
    if lines and form.output:
        answers = AnswersFile(form.output, lines.known or ())
    # What is wrong with the file of answers is told before the model is loaded.
    with answers, opened(models, speculation, machine, sampling.temp, is_fixed=True, **further) as model:
        if model.prompt_states:
            model.prompt_states.least = FEWEST  # nobody goes on with its answer
        output.hint(f"plan: {answer_report.plan_words(model, sampling.temp)}")
        if model.llama_model.chat_template is None and not form.raw:
            output.note("the model has no chat template, so the prompt is continued as it is; see --chat-template")
        writer = AnswerWriter(model, request, form.raw, form.system, form.think, form.stats)
        return write_lines(writer, lines, answers) if lines else writer.write(prompt, form.json)


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


def _read(form: FormOptions, given: str | None) -> tuple[str, Lines | None]:
    """The prompt, or lines of prompts. Raises PromptError."""
    from specrun.cli.writing import Lines

    files = form.file or []
    if not form.jsonl:
        return read_text(given, files), None
    lines = Lines(read_lines(given, files))
    if given and lines.known == []:
        raise PromptError("the argument stands before each prompt, and there is no line; give lines on stdin or -f")
    return "", lines


def _crowd(known: Sequence[PromptLine] | None, system: str | None, max_tokens: int | None, n: int | None) -> Crowd:
    """What is known of the texts to come. n: as `_parallel` has it."""
    from specrun.loading.many import Crowd, usual_bytes

    sizes = [len(line.prompt.encode(errors="replace")) for line in known or () if not line.error]
    usual = usual_bytes(sizes, _USUAL_BYTES) + len((system or "").encode(errors="replace"))
    return Crowd(None if known is None else len(known), usual, max_tokens, n)


def read_text(argument: str | None, files: Sequence[Path]) -> str:
    """The prompt: the argument, the files, and stdin if it is not a terminal, joined by newlines.

    The final newline of each file and of stdin is dropped. Raises PromptError if the prompt is empty, is not UTF-8, or
    is just the name of a file, and if a file cannot be read.
    """
    parts = [] if argument is None or argument == STDIN else [argument]
    parts += [_decode(read_bytes(file, PromptError), str(file)) for file in files if str(file) != STDIN]
    if argument == STDIN or Path(STDIN) in files or not _is_terminal():
        parts.append(_decode(_stdin().read(), "stdin"))
    if not parts:
        raise PromptError("no prompt: give it as an argument, with -f FILE, or on stdin")
    prompt = "\n".join(part for part in parts if part)
    if prompt == argument and names_file(prompt):
        raise PromptError(f"{prompt} is the name of a file; -f {shlex.quote(prompt)} reads the prompt from it")
    if not prompt.strip():
        raise PromptError("the prompt is empty; give some text")
    return prompt


def read_lines(argument: str | None, files: Sequence[Path]) -> Iterator[PromptLine]:
    """The prompts of JSONL files, or of stdin as they arrive. `argument` is put before each prompt, with a newline.

    A line is an object with `prompt`, optionally `id`, and what else the user wants in it but options. A bad line is
    yielded with its `error`, and reading goes on. Raises PromptError at once, before the first line, if there is no
    input or a file cannot be read.
    """
    if argument and not files and names_file(argument):
        raise PromptError(f"{argument} is the name of a file; -f {shlex.quote(argument)} reads the prompts from it")
    prefix = f"{argument}\n" if argument and argument != STDIN else ""
    lines: list[Iterable[bytes]] = [read_bytes(file, PromptError).splitlines() for file in files if str(file) != STDIN]
    if len(lines) < len(files) or not lines:
        if _is_terminal() and argument != STDIN and not files:
            raise PromptError("no prompts: give JSON lines with -f FILE or on stdin")
        lines.append(_lines_of(_stdin()))
    numbered = enumerate(chain.from_iterable(lines), start=1)
    return (_parse(raw, number, prefix) for number, raw in numbered if raw.strip())


def _parse(raw: bytes, number: int, prefix: str) -> PromptLine:
    from specrun.cli.answers import PromptLine

    place: dict[str, Any] = {"id": number, "number": number, "has_id": False}
    try:
        line = given_json(_decode(raw, f"line {number}"), f"line {number}", PromptError)
    except PromptError as error:
        return PromptLine(**place, error=str(error))
    if not isinstance(line, dict):
        return PromptLine(**place, error=f'line {number} is no object; write {{"prompt": "..."}} in each line')
    if "id" in line:
        place |= {"id": line["id"], "has_id": True}
    if not isinstance(line.get("prompt"), str):
        return PromptLine(**place, error=f'line {number} has no "prompt" text')
    if not line["prompt"].strip():
        return PromptLine(**place, error=f"line {number} has an empty prompt")
    for name, value in line.items():
        option = option_of(f"--{name.replace('_', '-')}")  # by whatever name it is known
        if value is not None and option[2:].replace("-", "_") in _OF_COMMAND:
            why = f'line {number} has "{name}", but options are the same for all lines; give {option} to the command'
            return PromptLine(**place, error=why)
    return PromptLine(**place, prompt=prefix + line["prompt"])


def _is_terminal() -> bool:
    """Whether no program and no file gives what stdin has."""
    return sys.stdin is None or sys.stdin.isatty()


def _stdin() -> BinaryIO:
    if sys.stdin is None:
        raise PromptError("stdin is closed; pipe the prompt in, or give it as an argument")
    return sys.stdin.buffer


def _lines_of(stdin: BinaryIO) -> Iterator[bytes]:
    """The lines as they come. Python aborts at its end if a thread still waits in `sys.stdin`, so that is not used."""
    try:
        own = os.dup(stdin.fileno())
    except OSError:  # it is no file
        yield from stdin
        return
    with os.fdopen(own, "rb") as reader:
        yield from reader


def _decode(data: bytes, source: str) -> str:
    return decode(data, source, PromptError).removesuffix("\n").removesuffix("\r")
