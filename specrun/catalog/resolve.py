"""Finds the files of a target and a draft by their names, or the models that have to be fetched first."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specrun.catalog import here
from specrun.catalog.entries import Entry
from specrun.catalog.file_names import shards
from specrun.catalog.hub.look_up import RemoteModel
from specrun.catalog.names import HubName, parse
from specrun.catalog.pairs import check_sizes
from specrun.display_text import size_text
from specrun.errors import MissingModelError
from specrun.locations import file_bytes

NO_DRAFT = "none"  # the value of --draft that means no draft
OWN_HEAD = "mtp"  # the value of --draft that means the target's own MTP layers


@dataclass(frozen=True)
class Model:
    """A model that the user named."""

    name: str
    path: Path | None  # of its first file; None if the model is not on this machine
    hub: HubName | None = None  # None if the name is a path

    @property
    def entry(self) -> Entry | None:
        """The catalog's entry; None if it has none."""
        return self.hub.entry if self.hub else None


@dataclass(frozen=True)
class Choice:
    """A target and its draft."""

    target: Model
    draft: Model | None
    recommended: bool = False  # whether the draft was chosen by the catalog, not by the user

    @property
    def missing(self) -> list[HubName]:
        """The models of the two that are not on this machine."""
        return [model.hub for model in (self.target, self.draft) if model and model.hub and model.path is None]


def locate(name: str) -> Model:
    """Find the model that a name means. Raises UsageError for an unknown name."""
    meaning = parse(name)
    return Model(name, meaning) if isinstance(meaning, Path) else Model(meaning.name, here.find(meaning), meaning)


def local_path(name: str) -> Path:
    """Path of a model's first file. Raises UsageError for an unknown name, MissingModelError if it is not here."""
    model = locate(name)
    if model.path is None:
        assert model.hub
        raise missing_error([model.hub], has_pull=False)
    return model.path


def choose(target: str, draft: str | None, may_fetch: bool) -> Choice:
    """Find a target and its draft. Raises UsageError for an unknown name.

    If `draft` is None, the first draft is taken that the catalog recommends and that is cached. If no such draft is
    cached and models may be fetched, the catalog's first recommendation is taken.
    """
    model = locate(target)
    if draft == NO_DRAFT:
        return Choice(model, None)
    if draft is not None:
        return Choice(model, locate(draft))
    recommended = [locate(name) for name in recommended_drafts(model)]
    return Choice(model, best_draft(recommended, may_fetch), recommended=True)


def best_draft(recommended: Sequence[Model], may_fetch: bool) -> Model | None:
    """The first that is on this machine; if none is and models may be fetched, the first of all."""
    first = recommended[0] if recommended and may_fetch else None
    return next((draft for draft in recommended if draft.path), first)


def recommended_drafts(target: Model) -> tuple[str, ...]:
    """Names of the drafts that the catalog recommends for this target, the best first; never the target itself."""
    drafts = target.entry.drafts if target.entry else ()
    return tuple(name for name in drafts if name.lower() != target.name.lower())


def check_remote(choice: Choice, remote: Sequence[RemoteModel]) -> None:
    """Raise PairError if the draft is bigger than the target. `remote` has the models that are not on this machine."""
    if choice.draft:
        n_bytes = {model.name: model.bytes for model in remote}
        target, draft = (_n_bytes(model, n_bytes) for model in (choice.target, choice.draft))
        check_sizes(target, draft)


def missing_error(missing: Sequence[HubName], has_pull: bool = True) -> MissingModelError:
    """The error that names the missing models and how to fetch them. has_pull: whether the command has --pull."""
    names = [model.name for model in missing]
    sizes = [model.entry.bytes if model.entry and model.file else None for model in missing]
    size = f" ({size_text(sum(size or 0 for size in sizes))})" if all(sizes) else ""
    what = f"{' and '.join(names)} {'are' if len(names) > 1 else 'is'} not on this machine{size}"
    or_pull = ", or add --pull" if has_pull else ""
    return MissingModelError(f"{what}; fetch with `specrun pull {shlex.join(names)}`{or_pull}")


def _n_bytes(model: Model, remote: dict[str, int]) -> int:
    """Bytes of a model: by its name in `remote`, else the sizes of its files on this machine."""
    if model.name in remote or model.path is None:
        return remote[model.name]
    return sum(file_bytes(model.path.with_name(shard)) for shard in shards(model.path.name))
