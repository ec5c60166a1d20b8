"""`specrun bench`: plans against plain decoding on the user's own pair; and its prompts, each with its kind of text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from specrun.display_text import counted
from specrun.errors import PromptError
from specrun.locations import decode, given_json, read_bytes

if TYPE_CHECKING:
    from specrun.loading.model import Model

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
    """The prompts of a JSONL file, whose lines are `{"prompt": ..., "kind": ...}`. The `question.jsonl` of MT-bench and
    Spec-Bench has `{"category": ..., "turns": [...]}` instead; the first turn is the prompt.

    Raises PromptError if the file cannot be read or has another line.
    """
    prompts = _parse(decode(read_bytes(path, PromptError), str(path), PromptError), str(path))
    if not prompts:
        raise PromptError(f'{path} holds no prompts; give lines like {{"prompt": "..."}}')
    return prompts


def fitting(
    prompts: Sequence[BenchPrompt], model: Model, max_tokens: int, raw: bool, note: Callable[[str], None]
) -> list[tuple[BenchPrompt, list[int]]]:
    """The prompts whose answers of `max_tokens` fit the model's context, with their token ids.

    note: called with a sentence if some do not. Raises PromptError if none does.
    """
    ctx_size = model.engine.ctx_size
    pairs = [(prompt, model.prompt_tokens(prompt.text, raw)) for prompt in prompts]
    found = [(prompt, tokens) for prompt, tokens in pairs if len(tokens) + max_tokens <= ctx_size]
    what = f"with {counted(max_tokens, 'more token')} beyond the context of {ctx_size}"
    if not found:
        raise PromptError(f"all prompts are {what}; give a larger --ctx-size")
    if len(found) < len(prompts):
        note(f"left out {len(prompts) - len(found)} of {counted(len(prompts), 'prompt')}: {what}")
    return found


def _parse(text: str, source: str) -> list[BenchPrompt]:
    prompts = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{source}, line {number}"
        entry = given_json(line, where, PromptError)
        entry = entry if isinstance(entry, dict) else {}
        turns = entry.get("turns")
        prompt = entry.get("prompt", turns[0] if isinstance(turns, list) and turns else None)
        if not isinstance(prompt, str) or not prompt.strip():
            raise PromptError(f'{where} has no "prompt" text and no "turns"')
        prompts.append(BenchPrompt(str(entry.get("kind", entry.get("category", "prompts"))), prompt))
    return prompts
