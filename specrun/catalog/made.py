"""The drafts that `specrun models make-draft` made, heads that `scripts/make_head` made, and the drafts that `specrun
tune` measured as the fastest, by target.

    $SPECRUN_DATA_DIR/drafts/IDENTITY/draft.json        describes the draft that was made and names its file
    $SPECRUN_DATA_DIR/drafts/IDENTITY/draft-*.gguf      the draft, unless --output named another file
    $SPECRUN_DATA_DIR/drafts/IDENTITY/head.json         the same for the head, and head-*.gguf
    $SPECRUN_DATA_DIR/drafts/IDENTITY/unfinished-head/  what `scripts/make_head` goes on from

IDENTITY is a hash of the target's content, so a target keeps its draft when its file is renamed or moved.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from specrun import kept_facts
from specrun.catalog.gguf_file import GgufFile
from specrun.errors import ModelFileError
from specrun.locations import data_dir, parse_json, write_json

Kind = Literal["draft", "head"]  # a model made of the target, or a head trained for it
KINDS: tuple[Kind, ...] = get_args(Kind)

_FASTEST = "fastest-drafts"  # a kind of `kept_facts`
_IDENTITY_DIGITS = 16  # of the 64 hex digits


@dataclass(frozen=True)
class MadeDraft:
    """A draft made from a target's own file, or a head made for the target."""

    path: Path
    how: str  # what was done to the target, e.g. `q2_k, 6 of 8 layers`, or how the head learned


@dataclass(frozen=True)
class FastestDraft:
    """A draft that was compared with others."""

    name: str  # as the user or the catalog named it
    path: Path | None  # of its first file; None if the target is fastest without a draft


def folder() -> Path:
    """The folder of all made drafts."""
    return data_dir() / "drafts"


def home(target: Path) -> Path:
    """The folder of the draft made from the model `target`. Raises ModelFileError if it cannot be read."""
    return folder() / GgufFile.read(target).identity[:_IDENTITY_DIGITS]


def find(target: Path, kind: Kind = "draft") -> MadeDraft | None:
    """The draft made from `target`, or None. If its description is damaged, it is the only draft beside that."""
    if not any(folder().glob(f"*/{kind}.json")):
        return None  # saves reading the target
    try:
        where = home(target)
    except ModelFileError:
        return None
    if not (described := where / f"{kind}.json").exists():
        return None
    with suppress(Exception):  # what is damaged may fail anywhere
        value = parse_json(described.read_bytes())
        return MadeDraft(where / value["path"], str(value["how"]))
    drafts = list(where.glob(f"{kind}-*.gguf"))
    return MadeDraft(drafts[0], drafts[0].stem.removeprefix(f"{kind}-")) if len(drafts) == 1 else None


def unfinished_head(target: Path) -> Path:
    """The folder of a head that is being made. Raises ModelFileError if the target cannot be read."""
    return home(target) / "unfinished-head"


def forget_unfinished_head(target: Path) -> bool:
    """Delete what a head was being made of. Returns whether there was any. Raises OSError."""
    if not any(folder().glob("*/unfinished-head")):
        return False  # saves reading the target
    with suppress(ModelFileError):
        if (work := unfinished_head(target)).is_dir():
            shutil.rmtree(work)
            _remove_empty_home(target)
            return True
    return False


def find_fastest(target: Path) -> FastestDraft | None:
    """The fastest draft of `target`, or None. The draft's file may have been deleted since."""
    if kept_facts.folder(_FASTEST).exists():  # saves reading the target
        with suppress(ModelFileError):
            return kept_facts.recall(
                _FASTEST, _of(target), lambda it: FastestDraft(it["name"], Path(it["path"]) if it["path"] else None)
            )
    return None


def keep_fastest(target: Path, draft: FastestDraft) -> None:
    """Run `target` with `draft` from now on, unless the user names another draft. Raises OSError."""
    path = str(draft.path.absolute()) if draft.path else None
    kept_facts.write(_FASTEST, _of(target), {"name": draft.name, "path": path})


def forget_fastest(target: Path) -> None:
    """Undo `keep_fastest`. Raises OSError."""
    kept_facts.path_of(_FASTEST, _of(target)).unlink(missing_ok=True)


def _of(target: Path) -> dict[str, str]:
    return {"target": GgufFile.read(target).identity}


def _remove_empty_home(target: Path) -> None:
    if home(target).is_dir() and not any(home(target).iterdir()):
        home(target).rmdir()


def register(target: Path, draft: MadeDraft, kind: Kind = "draft") -> None:
    """Make `draft` the draft of `target`. A previous draft in the data folder is deleted. Raises OSError."""
    previous = find(target, kind)
    path = draft.path.name if draft.path.parent == home(target) else str(draft.path.absolute())
    write_json(home(target) / f"{kind}.json", {"path": path, "how": draft.how, "target": str(target)})
    if previous and previous.path != draft.path:
        _delete(previous, target)


def forget(target: Path, kind: Kind = "draft") -> tuple[MadeDraft, int] | None:
    """Undo `register`, but keep a draft that --output placed. Returns the draft and the bytes freed. Raises OSError."""
    if (draft := find(target, kind)) is None:
        return None
    freed = _delete(draft, target)
    (home(target) / f"{kind}.json").unlink(missing_ok=True)
    _remove_empty_home(target)
    return draft, freed


def _delete(draft: MadeDraft, target: Path) -> int:
    """Delete the draft's file if it lies in the data folder. Returns the number of bytes freed."""
    if draft.path.parent != home(target) or not draft.path.exists():
        return 0
    n_bytes = draft.path.stat().st_size
    draft.path.unlink()
    return n_bytes
