"""The prompts of a benchmark, shipped or the user's own, each with its kind of text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from specrun.errors import PromptError
from specrun.locations import decode, read_bytes

KINDS = ("code", "chat", "prose", "structured", "edit", "summary")  # answers to the last two copy from the prompt
USUAL = KINDS[:4]


@dataclass(frozen=True)
class BenchPrompt:
    """A prompt, and the kind of text that it asks for."""

    kind: str
    text: str


def shipped(kinds: Sequence[str] = USUAL) -> list[BenchPrompt]:
    """The prompts of these kinds that come with specrun."""
    text = (files("specrun.bench") / "prompts.jsonl").read_text(encoding="utf-8")
    return [prompt for prompt in _parse(text, "the shipped prompts") if prompt.kind in kinds]


def load(path: Path) -> list[BenchPrompt]:
    """The prompts of a JSONL file. Its lines are `{"prompt": ..., "kind": ...}`, or those of the `question.jsonl` of
    MT-bench and Spec-Bench, `{"category": ..., "turns": [...]}`, of which the first turn is taken.

    Raises PromptError if the file cannot be read or has another line.
    """
    text = decode(read_bytes(path, PromptError), str(path), PromptError)
    prompts = _parse(text, str(path))
    if not prompts:
        raise PromptError(f'{path} holds no prompts; give lines like {{"prompt": "..."}}')
    return prompts


def _parse(text: str, source: str) -> list[BenchPrompt]:
    return [
        _parse_line(line, f"{source}, line {number}")
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip()
    ]


def _parse_line(line: str, where: str) -> BenchPrompt:
    try:
        entry: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise PromptError(f"{where} is not JSON: {error}") from error
    entry = entry if isinstance(entry, dict) else {}
    turns = entry.get("turns")
    prompt = entry.get("prompt", turns[0] if isinstance(turns, list) and turns else None)
    kind = entry.get("kind", entry.get("category", "prompts"))
    if not isinstance(prompt, str) or not prompt.strip():
        raise PromptError(f'{where} has no "prompt" text and no "turns"')
    return BenchPrompt(str(kind), prompt)
