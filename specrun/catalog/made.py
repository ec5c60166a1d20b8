"""The drafts that `specrun models make-draft` made, found by the target that each was made from.

    $SPECRUN_DATA_DIR/drafts/IDENTITY/draft.json        describes the draft and names its file
    $SPECRUN_DATA_DIR/drafts/IDENTITY/draft-*.gguf      the draft, unless --output named another file

IDENTITY is a hash of the target's content, so a target keeps its draft when its file is renamed or moved.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specrun.catalog.gguf_file import GgufFile, file_identity
from specrun.errors import ModelFileError
from specrun.locations import data_dir, parse_json, write_json

_ENTRY = "draft.json"
_IDENTITY_DIGITS = 16  # of the 64 hex digits


@dataclass(frozen=True)
class MadeDraft:
    """A draft made from a target's own file."""

    path: Path
    how: str  # what was done to the target, e.g. `q2_k, 6 of 8 layers`


def folder() -> Path:
    """The folder of all made drafts."""
    return data_dir() / "drafts"


def home(target: Path) -> Path:
    """The folder of the draft made from the model `target`. Raises ModelFileError if it cannot be read."""
    return folder() / file_identity(GgufFile.read(target).shards)[:_IDENTITY_DIGITS]


def find(target: Path) -> MadeDraft | None:
    """The draft made from `target`, or None. The draft's file may have been deleted since.

    If its description is damaged, the only draft that lies beside the description is taken.
    """
    value = read_entry(target, _ENTRY)
    try:
        path, how = value["path"], str(value["how"])
        return MadeDraft(home(target) / path, how)
    except (KeyError, TypeError):  # damaged, or None
        return _undescribed(target) if any(folder().glob(f"*/{_ENTRY}")) else None


def _undescribed(target: Path) -> MadeDraft | None:
    try:
        drafts = list(home(target).glob("draft-*.gguf")) if (home(target) / _ENTRY).exists() else []
    except ModelFileError:  # a target that is not here has no draft
        return None
    return MadeDraft(drafts[0], drafts[0].stem.removeprefix("draft-")) if len(drafts) == 1 else None


def read_entry(target: Path, name: str) -> Any:
    """What the JSON file `name` in the home of `target` says; None if there is none that can be read."""
    if not any(folder().glob(f"*/{name}")):
        return None  # saves reading the target
    try:
        return parse_json((home(target) / name).read_bytes())
    except (OSError, ModelFileError, ValueError):
        return None


def remove_entry(target: Path, name: str) -> None:
    """Delete the file `name` in the home of `target`, and the home if nothing else is in it. Raises OSError."""
    (home(target) / name).unlink(missing_ok=True)
    if home(target).is_dir() and not any(home(target).iterdir()):
        home(target).rmdir()


def register(target: Path, draft: MadeDraft) -> None:
    """Make `draft` the draft of `target`. A previous draft in the data folder is deleted. Raises OSError."""
    previous = find(target)
    path = draft.path.name if draft.path.parent == home(target) else str(draft.path.absolute())
    write_json(home(target) / _ENTRY, {"path": path, "how": draft.how, "target": str(target)})
    if previous and previous.path != draft.path:
        _delete(previous, target)


def forget(target: Path) -> tuple[MadeDraft, int] | None:
    """Undo `register`: delete the draft, unless the user chose its place with --output. Raises OSError.

    Returns the draft and the number of bytes freed, or None if there is no made draft.
    """
    draft = find(target)
    if draft is None:
        return None
    freed = _delete(draft, target)
    remove_entry(target, _ENTRY)
    return draft, freed


def _delete(draft: MadeDraft, target: Path) -> int:
    """Delete the draft's file if it lies in the data folder. Returns the number of bytes freed."""
    if draft.path.parent != home(target) or not draft.path.exists():
        return 0
    n_bytes = draft.path.stat().st_size
    draft.path.unlink()
    return n_bytes
