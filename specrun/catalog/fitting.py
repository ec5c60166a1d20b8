"""Which drafts fit a target, among the catalog and what is on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache as remembered
from pathlib import Path

from specrun.catalog import cache, pairs, resolve
from specrun.catalog.entries import catalog
from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.resolve import Model
from specrun.catalog.vocabulary import FileVocabulary, read_vocabulary
from specrun.errors import ModelFileError


@dataclass(frozen=True)
class Pair:
    """A target with a draft. recommended: by the catalog. cached: the draft is on this machine. checked: both files
    are, and their tokenizers were compared. difference: why it cannot draft, in words.
    """

    target: str
    draft: str
    recommended: bool
    cached: bool
    checked: bool = False
    difference: str | None = None
    warnings: tuple[str, ...] = ()


def pairs_of(target: Model) -> list[Pair]:
    """All pairs with this target: drafts that the catalog recommends, then everything smaller that is on this machine.

    Raises ModelFileError if the target's file is damaged.
    """
    if target.path:
        _read(target.path)
    names = list(resolve.recommended_drafts(target))
    recommended = [_pair(target, resolve.locate(name), True) for name in names]
    paths = {resolve.locate(name).path for name in names} | {target.path}
    others = [model for model in on_this_machine() if model.path not in paths] if target.path else []
    return recommended + [_pair(target, model, False) for model in others if _is_smaller(model, target)]


def on_this_machine() -> Iterator[Model]:
    """Every cached model, by its alias if it has one, that can be read."""
    aliases = {(entry.repo, entry.file): entry.alias for entry in catalog().values()}
    for cached in cache.models():
        try:
            _read(cached.path)
        except ModelFileError:
            continue
        yield resolve.locate(aliases.get((cached.repo, cached.file), f"{cached.repo}/{cached.file}"))


def _is_smaller(model: Model, target: Model) -> bool:
    assert model.path
    assert target.path
    return _read(model.path)[0] < _read(target.path)[0]


def _pair(target: Model, draft: Model, recommended: bool) -> Pair:
    pair = Pair(target.name, draft.name, recommended, cached=draft.path is not None)
    if target.path is None or draft.path is None:
        return pair
    try:
        ours, theirs = _read(target.path)[1], _read(draft.path)[1]
    except ModelFileError as error:
        return Pair(target.name, draft.name, recommended, True, True, str(error))
    difference = pairs.first_difference(ours, theirs)
    warnings = () if difference else pairs.warnings(ours, theirs)
    return Pair(target.name, draft.name, recommended, True, True, difference, warnings)


@remembered
def _read(path: Path) -> tuple[int, FileVocabulary]:
    file = GgufFile.read(path)
    return file.n_bytes, read_vocabulary(file)
