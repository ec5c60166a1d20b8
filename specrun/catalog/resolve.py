"""Names of a target and a draft -> files on this machine, or what has to be fetched first."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specrun.catalog import cache
from specrun.catalog.entries import Entry
from specrun.catalog.hub import RemoteModel
from specrun.catalog.names import HubName, parse
from specrun.catalog.pairs import check_families, check_sizes
from specrun.catalog.split import shards
from specrun.errors import MissingModelError
from specrun.units import size_text

NO_DRAFT = "none"


@dataclass(frozen=True)
class Model:
    """A model of the command line. path None: not on this machine. hub None: the name is a path."""

    name: str
    path: Path | None
    hub: HubName | None = None


@dataclass(frozen=True)
class Choice:
    """A target and its draft. recommended: nobody named the draft, the catalog did."""

    target: Model
    draft: Model | None
    recommended: bool = False

    @property
    def missing(self) -> list[HubName]:
        """What is not on this machine."""
        return [model.hub for model in (self.target, self.draft) if model and model.hub and model.path is None]


def locate(name: str) -> Model:
    """Where the model of this name is. Raises UsageError for an unknown alias."""
    meant = parse(name)
    if isinstance(meant, Path):
        return Model(name, meant)
    return Model(name, cache.find(meant), meant)


def choose(target: str, draft: str | None, may_fetch: bool) -> Choice:
    """Locate both. draft None: the first recommended one of the catalog that is cached; else, if something may be
    fetched, the first recommended. `NO_DRAFT` means none.
    """
    found = locate(target)
    if draft == NO_DRAFT:
        return Choice(found, None)
    if draft is not None:
        return Choice(found, locate(draft))
    recommended = [locate(name) for name in recommended_drafts(found)]
    cached = next((model for model in recommended if model.path), None)
    if cached or not (recommended and may_fetch):
        return Choice(found, cached, recommended=True)
    return Choice(found, recommended[0], recommended=True)


def recommended_drafts(target: Model) -> tuple[str, ...]:
    """Names of drafts that the catalog recommends for this target, but not the target itself."""
    entry = target.hub.entry if target.hub else None
    return tuple(name for name in entry.drafts if name.lower() != target.name.lower()) if entry else ()


def check_choice(choice: Choice) -> None:
    """Raise PairError if the catalog knows that the pair cannot work; asks nobody."""
    if choice.draft:
        check_families(_entry(choice.target), _entry(choice.draft))


def check_found(choice: Choice, found: Sequence[RemoteModel]) -> None:
    """Raise PairError if the draft is bigger than the target, by what the hub says of those that are missing."""
    if choice.draft:
        n_bytes = {model.name: model.bytes for model in found}
        target, draft = (_n_bytes(model, n_bytes) for model in (choice.target, choice.draft))
        check_sizes(target, draft)


def missing_error(missing: Sequence[HubName], has_pull: bool = True) -> MissingModelError:
    """One line that names the models and the command that fetches them. has_pull: the command at hand has --pull."""
    names = [model.name for model in missing]
    sizes = [model.entry.bytes if model.entry and model.file else None for model in missing]
    known = f" ({size_text(sum(size or 0 for size in sizes))})" if all(sizes) else ""
    are = "are" if len(names) > 1 else "is"
    return MissingModelError(
        f"{' and '.join(names)} {are} not on this machine{known}; fetch with `specrun pull {shlex.join(names)}`"
        + (", or add --pull" if has_pull else "")
    )


def _entry(model: Model) -> Entry | None:
    return model.hub.entry if model.hub else None


def _n_bytes(model: Model, remote: dict[str, int]) -> int:
    if model.name in remote or model.path is None:
        return remote[model.name]
    paths = [model.path.with_name(shard) for shard in shards(model.path.name)]
    return sum(path.stat().st_size for path in paths if path.exists())
