"""Finds the drafts that fit a target, in the catalog and on this machine."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from specrun.catalog import cache, heads, pairs, resolve
from specrun.catalog.entries import catalog
from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.pairs import FileVocabulary, read_vocabulary
from specrun.catalog.resolve import Model
from specrun.errors import ModelFileError


@dataclass(frozen=True)
class Pair:
    """A target with a draft."""

    target: str
    draft: str
    recommended: bool  # by the catalog
    cached: bool  # the draft is on this machine
    checked: bool = False  # both files are on this machine, and their tokenizers were compared
    difference: str | None = None  # why the draft cannot draft for the target; None if it can or was not checked
    warnings: tuple[str, ...] = ()  # why the draft may guess badly, one sentence each


def pairs_of(target: Model) -> list[Pair]:
    """All pairs with this target: the drafts that the catalog recommends, the MTP layers of its own file, then all
    smaller models on this machine.

    Raises ModelFileError if the target's file is damaged.
    """
    own: list[Pair] = []
    if target.path:
        _read(target.path)
        if heads.own_head(GgufFile.read(target.path)):
            own = [Pair(target.name, resolve.OWN_HEAD, recommended=False, cached=True, checked=True)]
    names = list(resolve.recommended_drafts(target))
    recommended = [_pair(target, resolve.locate(name), True) for name in names]
    paths = {resolve.locate(name).path for name in names} | {target.path}
    others = [model for model in on_this_machine() if model.path not in paths] if target.path else []
    return recommended + own + [_pair(target, model, False) for model in others if _is_smaller(model, target)]


def on_this_machine() -> Iterator[Model]:
    """Every cached model whose file can be read, named by its alias if it has one."""
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
        target_vocabulary, draft_vocabulary = _read(target.path)[1], _read(draft.path)[1]
        file = GgufFile.read(draft.path)
        head = heads.head_in(file)
    except ModelFileError as error:
        return Pair(target.name, draft.name, recommended, True, True, str(error))
    if head:
        difference = heads.difference_of(GgufFile.read(target.path), file, head)
        return Pair(target.name, draft.name, recommended, True, True, difference)
    difference = pairs.first_difference(target_vocabulary, draft_vocabulary)
    warnings = () if difference else pairs.warnings(target_vocabulary, draft_vocabulary)
    return Pair(target.name, draft.name, recommended, True, True, difference, warnings)


@functools.cache
def _read(path: Path) -> tuple[int, FileVocabulary]:
    """Bytes of the weights, and the vocabulary. Raises ModelFileError."""
    file = GgufFile.read(path)
    return file.n_bytes, read_vocabulary(file)
