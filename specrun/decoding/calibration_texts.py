"""The prompts that `specrun tune` writes texts from. Those for calibrating, for validating and of `bench` differ."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from itertools import zip_longest
from typing import Literal

Use = Literal["calibrate", "validate"]


@dataclass(frozen=True)
class TuningText:
    """A prompt. kind: code, chat, prose, structured, or edit (the answer copies most of the prompt)."""

    kind: str
    prompt: str


def shipped(use: Use) -> list[TuningText]:
    """The prompts for one use. Their kinds take turns, so that the first few prompts are of different kinds."""
    lines = (files("specrun.decoding") / "calibration_texts.jsonl").read_text(encoding="utf-8").splitlines()
    by_kind: dict[str, list[TuningText]] = {}
    for entry in map(json.loads, lines):
        if entry["use"] == use:
            by_kind.setdefault(entry["kind"], []).append(TuningText(entry["kind"], entry["prompt"]))
    return [text for turn in zip_longest(*by_kind.values()) for text in turn if text]


def together(*uses: Use) -> str:
    """The prompts for these uses, without any for calibrating, as one text, to time passes or compare tokenizers on."""
    return "\n\n".join(text.prompt for use in uses or ("calibrate",) for text in shipped(use))
