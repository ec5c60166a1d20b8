"""The pair inside the package: a small model trained on Python code, its draft, and a head that also drafts for it
(docs/embedded-pair.md).
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

_FOLDER = Path(str(files("specrun"))) / "embedded"

TARGET = _FOLDER / "target.gguf"
DRAFT = _FOLDER / "draft.gguf"
HEAD = _FOLDER / "head.gguf"
NAME = "embedded"  # what --target calls the pair
DRAFTS = {"draft": DRAFT, "eagle3": HEAD}  # by what --draft calls them where no target is named


def is_meant(target: str | None) -> bool:
    """Whether a target's name, or None where none was named, means the embedded pair."""
    return target is None or target.lower() == NAME
