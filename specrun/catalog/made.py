"""The drafts that `specrun models make-draft` made, heads that `scripts/make_head` made, and the drafts that `specrun
tune` measured as the fastest, by target.

    $SPECRUN_DATA_DIR/drafts/IDENTITY/draft.json        describes the draft that was made and names its file
    $SPECRUN_DATA_DIR/drafts/IDENTITY/draft-*.gguf      the draft, unless --output named another file
    $SPECRUN_DATA_DIR/drafts/IDENTITY/head.json         the same for the head, and head-*.gguf
    $SPECRUN_DATA_DIR/drafts/IDENTITY/unfinished-head/  what `scripts/make_head` goes on from
    $SPECRUN_DATA_DIR/drafts/IDENTITY/trimmed-*.gguf    a draft that `specrun tune` trimmed for this target

IDENTITY is a hash of the target's content, so a target keeps its draft when its file is renamed or moved.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from specrun import kept_facts
from specrun.catalog.gguf_file import GgufFile
from specrun.errors import ModelFileError
from specrun.locations import data_dir, parse_json, write_json

Kind = Literal["draft", "head"]  # a model made of the target, or a head trained for it

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
    entry = _entry(target, f"{kind}.json")
    if entry is None:
        return None
    with suppress(Exception):  # what is damaged may fail anywhere
        value = parse_json(entry.read_bytes())
        return MadeDraft(entry.parent / value["path"], str(value["how"]))
    drafts = list(entry.parent.glob(f"{kind}-*.gguf"))
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


def trimmed_path(target: Path, draft: Path, n: int) -> Path:
    """Where `draft` with `n` tokens is kept for `target`. Raises ModelFileError if the target cannot be read."""
    return home(target).absolute() / f"trimmed-{draft.stem}-{n}.gguf"


def trimmed_drafts(target: Path) -> list[Path]:
    """The drafts that were trimmed for `target`."""
    if any(folder().glob("*/trimmed-*.gguf")):  # saves reading the target
        with suppress(ModelFileError):
            return sorted(home(target).absolute().glob("trimmed-*.gguf"))
    return []


def forget_trimmed(target: Path, but: Path | None = None) -> int:
    """Delete the drafts that were trimmed for `target`, except one. Returns the bytes freed. Raises OSError."""
    fastest, freed = find_fastest(target), 0
    for path in (path for path in trimmed_drafts(target) if path != but):
        freed += path.stat().st_size
        _remove_entry(target, path.name)
        if fastest and fastest.path == path:
            forget_fastest(target)
    return freed


def _entry(target: Path, name: str) -> Path | None:
    """The file `name` in the home of `target`; None if there is none, or no such target."""
    if not any(folder().glob(f"*/{name}")):
        return None  # saves reading the target
    with suppress(ModelFileError):
        return path if (path := home(target) / name).exists() else None
    return None


def _remove_entry(target: Path, name: str) -> None:
    """Delete the file `name` in the home of `target`, and the home if nothing else is in it."""
    (home(target) / name).unlink(missing_ok=True)
    _remove_empty_home(target)


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
    _remove_entry(target, f"{kind}.json")
    return draft, freed


def _delete(draft: MadeDraft, target: Path) -> int:
    """Delete the draft's file if it lies in the data folder. Returns the number of bytes freed."""
    if draft.path.parent != home(target) or not draft.path.exists():
        return 0
    n_bytes = draft.path.stat().st_size
    draft.path.unlink()
    return n_bytes
