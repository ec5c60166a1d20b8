"""Reads prompts from an argument, files and stdin, as one text or as JSON lines."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from specrun.errors import PromptError
from specrun.locations import decode, given_json, names_file, read_bytes
from specrun.options.expand import option_of
from specrun.options.sampling_options import SamplingOptions

STDIN = "-"  # the name of stdin as argument or file
_OPTIONS = {field.name for field in fields(SamplingOptions)} | {"system", "think"}


@dataclass(frozen=True)
class PromptLine:
    """One line of a JSONL input."""

    id: Any  # the line's number if it has no id, or None if it is wrong besides, as another may have that number
    prompt: str = ""
    error: str | None = None  # why the line has no usable prompt
    number: int = 0  # of the line
    has_id: bool = True  # whether it has an id, or is right

    @property
    def name(self) -> str:
        """Its id as JSON; without one its number, as no JSON says it."""
        return json.dumps(self.id, sort_keys=True) if self.has_id else f"line {self.number}"


def read_text(argument: str | None, files: Sequence[Path]) -> str:
    """The prompt: the argument, the files, and stdin if it is not a terminal, joined by newlines.

    The final newline of each file and of stdin is dropped. Raises PromptError if the prompt is empty, is not UTF-8, or
    is just the name of a file, and if a file cannot be read.
    """
    parts = [] if argument is None or argument == STDIN else [argument]
    parts += [_decode(read_bytes(file, PromptError), str(file)) for file in files if str(file) != STDIN]
    if argument == STDIN or Path(STDIN) in files or not is_terminal():
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
        if is_terminal() and argument != STDIN and not files:
            raise PromptError("no prompts: give JSON lines with -f FILE or on stdin")
        lines.append(_lines_of(_stdin()))
    numbered = enumerate(chain.from_iterable(lines), start=1)
    return (_parse(raw, number, prefix) for number, raw in numbered if raw.strip())


def _parse(raw: bytes, number: int, prefix: str) -> PromptLine:
    try:
        line = given_json(_decode(raw, f"line {number}"), f"line {number}", PromptError)
    except PromptError as error:
        return PromptLine(None, error=str(error), number=number, has_id=False)
    if not isinstance(line, dict):
        why = f'line {number} is no object; write {{"prompt": "..."}} in each line'
        return PromptLine(None, error=why, number=number, has_id=False)
    wrong: dict[str, Any] = {"id": line.get("id"), "number": number, "has_id": "id" in line}
    if not isinstance(line.get("prompt"), str):
        return PromptLine(**wrong, error=f'line {number} has no "prompt" text')
    if not line["prompt"].strip():
        return PromptLine(**wrong, error=f"line {number} has an empty prompt")
    for name, value in line.items():
        option = option_of(f"--{name.replace('_', '-')}")  # by whatever name it is known
        if value is not None and option[2:].replace("-", "_") in _OPTIONS:
            why = f'line {number} has "{name}", but options are the same for all lines; give {option} to the command'
            return PromptLine(**wrong, error=why)
    return PromptLine(line.get("id", number), prefix + line["prompt"], number=number)


def is_terminal() -> bool:
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
