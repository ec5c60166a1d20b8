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
from specrun.catalog.shared_tokens import LEAST_SHARE, check_comparable, share_of, token_spans, what_is_shared
from specrun.errors import ModelFileError, PairError


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
    share: float | None = None  # of the target's text that both tokenizers share; None where both have the same one


def pairs_of(target: Model, text: str) -> list[Pair]:
    """The target's pairs: the catalog's drafts, its MTP layers, then all smaller models here. Raises ModelFileError.

    text: of which the shares of other tokenizers are told.
    """
    recommended = [resolve.locate(name) for name in resolve.recommended_drafts(target)]
    best = resolve.best_draft(recommended, may_fetch=True)
    others = [resolve.locate(name) for name in (target.entry.other_drafts if target.entry else ())]
    recommended += [model for model in others if model not in recommended]
    found = [_pair(target, model, model == best, text) for model in recommended]
    if target.path is None:
        return found
    n_bytes, _ = _read(target.path)
    if heads.own_head(GgufFile.read(target.path)):
        found.append(Pair(target.name, resolve.OWN_HEAD, recommended=False, cached=True, checked=True))
    known = {model.path for model in recommended}
    for model in on_this_machine(with_heads=True):
        if model.path and model.path not in known and _read(model.path)[0] < n_bytes:
            found.append(_pair(target, model, False, text))
    return found


def on_this_machine(with_heads: bool = False) -> Iterator[Model]:
    """Every model here whose file can be read. with_heads: as in `local_models`."""
    for model in local_models(with_heads):
        with suppress(ModelFileError):
            _read(model.path)
            yield resolve.locate(model.name)


def _pair(target: Model, draft: Model, recommended: bool, text: str) -> Pair:
    pair = Pair(target.name, draft.name, recommended, cached=draft.path is not None)
    if target.path is None or draft.path is None:
        percent = target.entry.other_drafts.get(draft.name.lower()) if target.entry else None
        return pair if percent is None else _by_share(pair, percent / 100)
    pair = replace(pair, checked=True)
    try:
        ours, theirs, file = _read(target.path)[1], _read(draft.path)[1], GgufFile.read(draft.path)
        if head := heads.head_in(file):
            return replace(pair, difference=heads.difference_of(GgufFile.read(target.path), file, head))
        warnings = pairs.warnings(ours, theirs)
        if pairs.first_difference(ours, theirs) is None:
            return replace(pair, warnings=warnings)
        check_comparable(ours, theirs)
    except (ModelFileError, PairError) as error:
        return replace(pair, difference=str(error))
    return _by_share(pair, share_of(_spans(target.path, text), _spans(draft.path, text)))


def _by_share(pair: Pair, share: float) -> Pair:
    """A pair of two tokenizers. share: of the target's text that both share."""
    what = what_is_shared(share)
    if share < LEAST_SHARE:
        return replace(pair, share=share, difference=f"{what}: it would not pay")
    return replace(pair, share=share, warnings=(what,))


@functools.cache
def _read(path: Path) -> tuple[int, FileVocabulary]:
    """Bytes of the weights, and the vocabulary. Raises ModelFileError."""
    file = GgufFile.read(path)
    return file.n_bytes, read_vocabulary(file)


@functools.cache
def _spans(path: Path, text: str) -> frozenset[tuple[int, int]]:
    return token_spans(_read(path)[1], text)
