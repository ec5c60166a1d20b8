"""Reading prompts: from an argument, files and stdin, as one text or as JSON lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specrun.errors import PromptError

STDIN = "-"


@dataclass(frozen=True)
class PromptLine:
    """One line of a JSONL input: its id (the line's number where it has none) and its prompt, or what is wrong."""

    id: Any
    prompt: str = ""
    error: str | None = None


def read_prompt(argument: str | None, files: Sequence[Path]) -> str:
    """Argument, then files, then stdin where something is piped in, joined by newlines.

    The last newline of files and stdin is the shell's, not the prompt's, and is dropped.
    Raises PromptError if there is nothing, or it cannot be read as UTF-8.
    """
    parts = [] if argument is None or argument == STDIN else [argument]
    parts += [_read_file(file) for file in files if str(file) != STDIN]
    stdin_named = argument == STDIN or Path(STDIN) in files
    if stdin_named or not _is_terminal():
        parts.append(_decode(sys.stdin.buffer.read(), "stdin"))
    if not parts:
        raise PromptError("no prompt: give it as an argument, with -f FILE, or on stdin")
    prompt = "\n".join(part for part in parts if part)
    if not prompt.strip():
        raise PromptError("the prompt is empty; give some text")
    return prompt


def read_prompt_lines(argument: str | None, files: Sequence[Path]) -> Iterator[PromptLine]:
    """The prompts of JSONL files, or of stdin, one at a time as they arrive; `argument` goes before each.

    A line is an object with `prompt` and, if wanted, `id`. A bad line is yielded with its `error`; it ends nothing.
    Raises PromptError if there is no input.
    """
    before = f"{argument}\n" if argument and argument != STDIN else ""
    sources = [file for file in files if str(file) != STDIN]
    number = 0
    for file in sources:
        for line in _read_file(file).splitlines():
            number += 1
            yield from _parse(line.encode(), number, before)
    if len(sources) < len(files) or not sources:
        if _is_terminal() and argument != STDIN and not files:
            raise PromptError("no prompts: give JSON lines with -f FILE or on stdin")
        for raw in sys.stdin.buffer:
            number += 1
            yield from _parse(raw, number, before)


def _parse(raw: bytes, number: int, before: str) -> Iterator[PromptLine]:
    if not raw.strip():
        return
    try:
        line = json.loads(_decode(raw, f"line {number}"))
    except (json.JSONDecodeError, PromptError) as error:
        yield PromptLine(number, error=f"line {number} is not JSON: {error}")
        return
    if not isinstance(line, dict) or not isinstance(line.get("prompt"), str):
        yield PromptLine(number, error=f'line {number} has no "prompt" text')
        return
    identity = line.get("id", number)
    if not line["prompt"].strip():
        yield PromptLine(identity, error=f"line {number} has an empty prompt")
        return
    yield PromptLine(identity, before + line["prompt"])


def _is_terminal() -> bool:
    return sys.stdin is None or sys.stdin.isatty()


def _read_file(file: Path) -> str:
    try:
        return _decode(file.read_bytes(), str(file))
    except OSError as error:
        raise PromptError(f"{file} cannot be read: {error.strerror}; check the path") from error


def _decode(data: bytes, source: str) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PromptError(
            f"{source} is not UTF-8 (byte 0x{data[error.start]:02x} at offset {error.start}); convert it first"
        ) from error
    return text.removesuffix("\n").removesuffix("\r")
