"""Drafts that `specrun models make-draft` made, by the target that they were made from.

    $SPECRUN_DATA_DIR/drafts/IDENTITY/draft.json        what was made, and where it is
    $SPECRUN_DATA_DIR/drafts/IDENTITY/draft-*.gguf      the draft, unless --output said elsewhere

IDENTITY is of the target's content: the same file is found under any name and in any place.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from specrun.catalog.gguf_file import GgufFile
from specrun.errors import ModelFileError
from specrun.hardware.machine import file_identity
from specrun.locations import data_dir, write_json

_ENTRY = "draft.json"
_IDENTITY_DIGITS = 16


@dataclass(frozen=True)
class MadeDraft:
    """path: of the draft. how: what was done to the target, e.g. `q2_k, 6 of 8 layers`."""

    path: Path
    how: str


def folder() -> Path:
    """Where made drafts are kept."""
    return data_dir() / "drafts"


def home(target: Path) -> Path:
    """The folder of drafts that are made from the model `target`. Raises ModelFileError."""
    return folder() / file_identity(GgufFile.read(target).shards)[:_IDENTITY_DIGITS]


def find(target: Path) -> MadeDraft | None:
    """The draft made from `target`, whose file may have been deleted since; None if none was made."""
    if not any(folder().glob(f"*/{_ENTRY}")):
        return None  # without reading the target
    try:
        value = json.loads((home(target) / _ENTRY).read_text(encoding="utf-8"))
        return MadeDraft(home(target) / value["path"], value["how"])
    except (OSError, ModelFileError, ValueError, KeyError, TypeError):
        return None


def register(target: Path, draft: MadeDraft) -> None:
    """Make `draft` the one of `target`. The one before is deleted if it lies in the data folder. Raises OSError."""
    before = find(target)
    place = home(target)
    path = draft.path.name if draft.path.parent == place else str(draft.path.absolute())
    write_json(place / _ENTRY, {"path": path, "how": draft.how, "target": str(target)})
    if before and before.path != draft.path:
        _delete(before, target)


def forget(target: Path) -> tuple[MadeDraft, int] | None:
    """Undo `register`. Returns what was forgotten and the bytes that this frees: 0 where the file was the user's to
    place, which stays. None if there is no made draft. Raises OSError.
    """
    draft = find(target)
    if draft is None:
        return None
    (home(target) / _ENTRY).unlink()
    freed = _delete(draft, target)
    if not any(home(target).iterdir()):
        home(target).rmdir()
    return draft, freed


def _delete(draft: MadeDraft, target: Path) -> int:
    if draft.path.parent != home(target) or not draft.path.exists():
        return 0
    n_bytes = draft.path.stat().st_size
    draft.path.unlink()
    return n_bytes
