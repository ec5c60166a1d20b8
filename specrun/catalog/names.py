"""What a NAME on the command line means: a path, or a model on the hub.

    qwen-14b                       an alias of the catalog
    qwen-14b:q2_k                  the same model in another quantization
    bartowski/gemma-2-2b-it-GGUF   a repository on the hub; :Q4_K_M chooses, Q4_K_M or Q8_0 by default
    org/repo/model-Q4_K_M.gguf     a file of a repository
    ./model.gguf                   a path

A file that exists wins over a repository of that name, an alias over both.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from specrun.catalog.entries import Entry, catalog
from specrun.catalog.split import shards
from specrun.errors import UsageError

_REPO = re.compile(r"[\w.-]+/[\w.-]+")
_PATH_SIGNS = (".", "~", "\\")
_MAX_SUGGESTIONS = 3


@dataclass(frozen=True)
class HubName:
    """A model on the hub. file None: the one of `quantization`. entry: the catalog's, if the name is an alias or the
    repository of one.
    """

    name: str
    repo: str
    revision: str | None = None
    file: str | None = None
    quantization: str | None = None
    entry: Entry | None = None


def parse(name: str) -> Path | HubName:
    """What `name` means. Raises UsageError for an alias that the catalog does not have."""
    entries = catalog()
    head, _, wanted = name.partition(":")
    if entry := entries.get(head.lower()):
        return _of_entry(name, entry, wanted)
    if _is_path(name):
        return Path(name).expanduser()
    if name.lower().endswith(".gguf"):
        org, repo, file = name.split("/", 2)
        first = shards(file)[0]
        entry = next((e for e in entries.values() if (e.repo, e.file) == (f"{org}/{repo}", first)), None)
        return HubName(name, f"{org}/{repo}", entry.revision if entry else None, first, None, entry)
    if _REPO.fullmatch(head):
        entry = next((e for e in entries.values() if e.repo == head), None)
        return HubName(name, head, entry.revision if entry else None, None, wanted or None, entry)
    raise UsageError(f"no model is called {name!r}; {_advice(head, entries)}")


def near(name: str, known: list[str]) -> list[str]:
    """The names among `known` that look like `name`, the most alike first."""
    by_lower = {other.lower(): other for other in known}
    found = difflib.get_close_matches(name.lower(), list(by_lower), _MAX_SUGGESTIONS, 0.6)
    return [by_lower[other] for other in found]


def _is_path(name: str) -> bool:
    path = Path(name)
    if path.is_absolute() or name.startswith(_PATH_SIGNS) or path.is_file():
        return True
    return name.lower().endswith(".gguf") and len(name.split("/")) < 3


def _of_entry(name: str, entry: Entry, wanted: str) -> HubName:
    if wanted and wanted.lower() != entry.quantization.lower():
        return HubName(name, entry.repo, entry.revision, None, wanted, entry)
    return HubName(name, entry.repo, entry.revision, entry.file, None, entry)


def _advice(head: str, entries: Mapping[str, Entry]) -> str:
    if suggestions := near(head, list(entries)):
        return f"did you mean {' or '.join(suggestions)}? `specrun models list` shows all"
    return "give a path, an alias of `specrun models list`, or org/repo:QUANT"
