"""Real text: this project's documentation, and code and prose of Python's standard library.

A mixture is fitted to three documents in four; the fourth is held out to measure it. Which these are changes with the
documentation, so what is measured of `docs` holds for mixtures that were made at the same commit.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
from numpy.typing import NDArray

from specrun.llama import LlamaModel

ROOT = Path(__file__).parents[2]
LENGTH = 512  # tokens of an excerpt
CHARACTERS = 10 * LENGTH  # more than they have


def _documents() -> dict[str, list[str]]:
    """The documents of each kind."""
    library = Path(sysconfig.get_path("stdlib"))
    files = {"docs": sorted((ROOT / "docs").rglob("*.md")), "code": sorted(library.glob("*.py"))}
    read = {kind: [path.read_text(encoding="utf-8") for path in paths] for kind, paths in files.items()}
    return read | {"prose": [topics[name] for name in sorted(topics)]}


def excerpts(model: LlamaModel, n: int, is_held_out: bool) -> dict[str, NDArray[np.int32]]:
    """Token ids of `n` excerpts of each kind, int32[n, LENGTH], spread evenly over its documents."""
    found = {}
    for kind, documents in _documents().items():
        text = "\n\n".join(text for i, text in enumerate(documents) if (i % 4 == 3) == is_held_out)
        starts = np.linspace(0, len(text) - CHARACTERS, n).astype(int)
        parts = [model.tokenize(text[start : start + CHARACTERS], add_special=False)[:LENGTH] for start in starts]
        found[kind] = np.array(parts, np.int32)
    return found
