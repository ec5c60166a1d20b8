"""The prompts that come with specrun for tuning; those that plans are validated on are others than those they are
calibrated on, and neither is among the prompts of `specrun bench`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal

Use = Literal["calibrate", "validate"]


@dataclass(frozen=True)
class TuningText:
    """A prompt and its kind (code, chat, prose, structured, or edit: one that copies)."""

    kind: str
    prompt: str


def shipped(use: Use) -> list[TuningText]:
    """The prompts for one use, kinds taking turns, so that the first few hold every kind."""
    lines = (files("specrun.engine") / "calibration_texts.jsonl").read_text(encoding="utf-8").splitlines()
    entries = [entry for entry in map(json.loads, lines) if entry["use"] == use]
    seen: dict[str, int] = {}
    order = []
    for entry in entries:
        order.append(seen.setdefault(entry["kind"], 0))
        seen[entry["kind"]] += 1
    ranked = sorted(zip(order, range(len(entries)), entries, strict=True), key=lambda item: item[:2])
    return [TuningText(entry["kind"], entry["prompt"]) for _, _, entry in ranked]


def together() -> str:
    """The prompts for calibrating, one after the other: something to time passes on."""
    return "\n\n".join(text.prompt for text in shipped("calibrate"))
