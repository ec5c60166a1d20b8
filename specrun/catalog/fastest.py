"""The draft that `specrun tune` measured as the fastest for a target, kept beside the drafts made from that target.

$SPECRUN_DATA_DIR/drafts/IDENTITY/fastest.json names the draft's file. IDENTITY is that of `made`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from specrun.catalog import made
from specrun.locations import write_json

_ENTRY = "fastest.json"


@dataclass(frozen=True)
class FastestDraft:
    """A draft that was compared with others."""

    name: str  # as the user or the catalog named it
    path: Path | None  # of its first file; None if the target is fastest without a draft


def find(target: Path) -> FastestDraft | None:
    """The fastest draft of the model `target`, or None. The draft's file may have been deleted since."""
    try:
        value = made.read_entry(target, _ENTRY)
        return FastestDraft(value["name"], Path(value["path"]) if value["path"] else None) if value else None
    except (KeyError, TypeError):
        return None


def keep(target: Path, draft: FastestDraft) -> None:
    """Run `target` with `draft` from now on, unless the user names another draft. Raises OSError."""
    path = str(draft.path.absolute()) if draft.path else None
    write_json(made.home(target) / _ENTRY, {"name": draft.name, "path": path, "target": str(target)})


def forget(target: Path) -> None:
    """Undo `keep`. Raises OSError."""
    made.remove_entry(target, _ENTRY)
