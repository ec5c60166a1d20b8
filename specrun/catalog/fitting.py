"""Finds the drafts that fit a target, in the catalog and on this machine."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from specrun.catalog import heads, pairs, resolve
from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.here import local_models
from specrun.catalog.pairs import FileVocabulary, read_vocabulary
from specrun.catalog.resolve import Model
from specrun.errors import ModelFileError


@dataclass(frozen=True)
class Pair:
    """A target with a draft."""

    target: str
    draft: str
    recommended: bool  # the one draft of the catalog that is used unless another is named or was measured as faster
    cached: bool  # the draft is on this machine
    checked: bool = False  # both files are on this machine, and their tokenizers were compared
    difference: str | None = None  # why the draft cannot draft for the target; None if it can or was not checked
    warnings: tuple[str, ...] = ()  # why the draft may guess badly, one sentence each


def pairs_of(target: Model) -> list[Pair]:
    """The target's pairs: the catalog's drafts, its MTP layers, then all smaller models here. Raises ModelFileError."""
    recommended = [resolve.locate(name) for name in resolve.recommended_drafts(target)]
    best = resolve.best_draft(recommended, may_fetch=True)
    found = [_pair(target, model, model == best) for model in recommended]
    if target.path is None:
        return found
    n_bytes, _ = _read(target.path)
    if heads.own_head(GgufFile.read(target.path)):
        found.append(Pair(target.name, resolve.OWN_HEAD, recommended=False, cached=True, checked=True))
    known = {model.path for model in recommended}
    for model in on_this_machine(with_heads=True):
        if model.path and model.path not in known and _read(model.path)[0] < n_bytes:
            found.append(_pair(target, model, False))
    return found


def on_this_machine(with_heads: bool = False) -> Iterator[Model]:
    """Every model here whose file can be read. with_heads: as in `local_models`."""
    for model in local_models(with_heads):
        with suppress(ModelFileError):
            _read(model.path)
            yield resolve.locate(model.name)


def _pair(target: Model, draft: Model, recommended: bool) -> Pair:
    pair = Pair(target.name, draft.name, recommended, cached=draft.path is not None)
    if target.path is None or draft.path is None:
        return pair
    try:
        ours, theirs, file = _read(target.path)[1], _read(draft.path)[1], GgufFile.read(draft.path)
        if head := heads.head_in(file):
            difference = heads.difference_of(GgufFile.read(target.path), file, head)
            return replace(pair, checked=True, difference=difference)
    except ModelFileError as error:
        return replace(pair, checked=True, difference=str(error))
    difference = pairs.first_difference(ours, theirs)
    warnings = () if difference else pairs.warnings(ours, theirs)
    return replace(pair, checked=True, difference=difference, warnings=warnings)


@functools.cache
def _read(path: Path) -> tuple[int, FileVocabulary]:
    """Bytes of the weights, and the vocabulary. Raises ModelFileError."""
    file = GgufFile.read(path)
    return file.n_bytes, read_vocabulary(file)
