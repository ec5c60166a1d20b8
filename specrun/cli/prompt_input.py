"""Reading prompts: from an argument, files and stdin, as one text or as JSON lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

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
    parts += [_decode(_read_file(file), str(file)) for file in files if str(file) != STDIN]
    stdin_named = argument == STDIN or Path(STDIN) in files
    if stdin_named or not _is_terminal():
        parts.append(_decode(_stdin().read(), "stdin"))
    if not parts:
        raise PromptError("no prompt: give it as an argument, with -f FILE, or on stdin")
    prompt = "\n".join(part for part in parts if part)
    if not prompt.strip():
        raise PromptError("the prompt is empty; give some text")
    return prompt


def read_prompt_lines(argument: str | None, files: Sequence[Path]) -> Iterator[PromptLine]:
    """The prompts of JSONL files, or of stdin, one at a time as they arrive; `argument` goes before each.

    A line is an object with `prompt` and, if wanted, `id`. A bad line is yielded with its `error`; it ends nothing.
    Raises PromptError at once if there is no input or a file cannot be read.
    """
    before = f"{argument}\n" if argument and argument != STDIN else ""
    lines: list[Iterable[bytes]] = [_read_file(file).splitlines() for file in files if str(file) != STDIN]
    if len(lines) < len(files) or not lines:
        if _is_terminal() and argument != STDIN and not files:
            raise PromptError("no prompts: give JSON lines with -f FILE or on stdin")
        lines.append(_stdin())
    numbered = enumerate(chain.from_iterable(lines), start=1)
    return (_parse(raw, number, before) for number, raw in numbered if raw.strip())


def _parse(raw: bytes, number: int, before: str) -> PromptLine:
    try:
        line = json.loads(_decode(raw, f"line {number}"))
    except PromptError as error:
        return PromptLine(number, error=str(error))
    except json.JSONDecodeError as error:
        return PromptLine(number, error=f"line {number} is not JSON: {error.msg} at column {error.colno}")
    except RecursionError:
        return PromptLine(number, error=f"line {number} is nested too deeply")
    if not isinstance(line, dict) or not isinstance(line.get("prompt"), str):
        return PromptLine(number, error=f'line {number} has no "prompt" text')
    identity = line.get("id", number)
    if not line["prompt"].strip():
        return PromptLine(identity, error=f"line {number} has an empty prompt")
    return PromptLine(identity, before + line["prompt"])


def _is_terminal() -> bool:
    return sys.stdin is None or sys.stdin.isatty()


def _stdin() -> BinaryIO:
    if sys.stdin is None:
        raise PromptError("stdin is closed; pipe the prompt in, or give it as an argument")
    return sys.stdin.buffer


def _read_file(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise PromptError(f"{file} cannot be read: {error.strerror}; check the path") from error


def _decode(data: bytes, source: str) -> str:
    try:
        text = data.decode("utf-8-sig")  # some editors begin a file with a byte order mark
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise PromptError(
            f"{source} is not UTF-8 (byte 0x{byte:02x} at offset {error.start}); convert it first"
        ) from error
    return text.removesuffix("\n").removesuffix("\r")
