"""`specrun doctor`: what this machine and this installation are like, and what would make specrun slow or fail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FACT = "fact: "  # what begins the name of a check of a fact about llama.cpp


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    status: warn: something is slower than it could be, or missing; fail: something will not work.
    detail: what was seen, in one line. fix: a command or a step that mends it; empty where nothing has to be mended.
    """

    check: str
    status: Literal["ok", "warn", "fail"]
    detail: str
    fix: str = ""
