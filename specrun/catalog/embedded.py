"""The pair inside the package: a small model trained on Python code, and its draft (docs/embedded-pair.md)."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

_FOLDER = Path(str(files("specrun"))) / "embedded"

TARGET = _FOLDER / "target.gguf"
DRAFT = _FOLDER / "draft.gguf"
