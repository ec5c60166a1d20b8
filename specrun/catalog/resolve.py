"""Finds the files of a target and a draft by their names, fetched first where that is wanted."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from specrun.catalog import cache, embedded, here, made, pairs
from specrun.catalog.cache import Progress
from specrun.catalog.entries import Entry
from specrun.catalog.file_names import shards
from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.heads import own_head
from specrun.catalog.hub import HubName
from specrun.catalog.hub.client import RemoteModel
from specrun.catalog.layer_states import recurrent_layers
from specrun.catalog.names import parse
from specrun.catalog.pairs import check_sizes
from specrun.display_text import size_text
from specrun.errors import HubError, MissingModelError, PairError
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


def missing_error(missing: Sequence[HubName], has_pull: bool = True) -> MissingModelError:
    """The error that names the missing models and how to fetch them. has_pull: whether the command has --pull."""
    names = [model.name for model in missing]
    sizes = [model.entry.bytes if model.entry and model.file else None for model in missing]
    size = f" ({size_text(sum(size or 0 for size in sizes))})" if all(sizes) else ""
    what = f"{' and '.join(names)} {'are' if len(names) > 1 else 'is'} not on this machine{size}"
    or_pull = ", or add --pull" if has_pull else ""
    return MissingModelError(f"{what}; fetch with `specrun pull {shlex.join(names)}`{or_pull}")


@dataclass
class Fetcher:
    """Fetches missing models if `may_fetch`, without asking. progress: shows it; by default nothing does."""

    may_fetch: bool
    progress: Callable[[], AbstractContextManager[Progress]] = lambda: nullcontext(Progress())

    def look_up(self, models: Sequence[HubName]) -> list[RemoteModel]:
        """Sizes, files and licences of models on the hub. Raises HubError."""
        with self.progress() as progress:
            return [cache.look_up(model, progress) for model in models]

    def fetch(self, models: Sequence[RemoteModel]) -> bool:
        """Fetch models, unless the user declines. Returns whether all are here now. Raises HubError."""
        cache.check_disk(models)
        with self.progress() as progress:
            for model in models:
                cache.pull(model, progress)
        return True


def local_pair(
    target: str | None, draft: str | None, drafting: bool, fetcher: Fetcher, note: Callable[[str], None]
) -> tuple[Path, Path | None]:
    """The files of a target and its draft.

    target: its name; None or "embedded" is the embedded target.
    draft: its name, "none" for no draft, "mtp" for the target's own MTP layers (the target's file is then also the
        draft's), or, for the embedded target, a name of `embedded.DRAFTS`. None takes the draft that `specrun tune`
        measured as the fastest, else the draft made from this target, else the catalog's recommendation.
    drafting: whether a draft is needed.
    note: is told which draft was chosen.

    Raises MissingModelError where something is missing and not fetched, PairError before fetching what would not fit,
    HubError, and UsageError for an unknown name.
    """
    if draft == OWN_HEAD:
        path, _ = local_pair(target, NO_DRAFT, drafting, fetcher, note)
        if own_head(GgufFile.read(path)) is None:
            raise PairError(f"{path.name} has no MTP layers that llama.cpp can draft with; give another --draft")
        return path, path if drafting else None
    name = target or embedded.NAME
    is_open = draft is None and drafting
    if is_open and (here := locate(name).path) and (pair := _kept_pair(here, target, note)):
        return pair
    if embedded.is_meant(target) and draft in (None, NO_DRAFT, *embedded.DRAFTS):
        return embedded.TARGET, None if draft == NO_DRAFT else embedded.DRAFTS[draft or "draft"]
    named = draft if drafting else NO_DRAFT
    choice = choose(name, named, fetcher.may_fetch)
    if choice.draft and choice.draft.path is None:
        pairs.check_families(choice.target.entry, choice.draft.entry)
    if choice.missing and fetcher.may_fetch and (models := _on_hub(choice, fetcher)):
        if choice.draft:
            sizes = {model.name: model.bytes for model in models}
            for model in (choice.target, choice.draft):
                if model.path:
                    sizes[model.name] = sum(file_bytes(model.path.with_name(n)) for n in shards(model.path.name))
            check_sizes(sizes[choice.target.name], sizes[choice.draft.name])
        if fetcher.fetch(models):
            choice = choose(name, named, may_fetch=True)
    if choice.missing:
        if choice.target.path is None or not choice.recommended:
            raise missing_error(choice.missing)
        choice = Choice(choice.target, None, recommended=True)
    file = choice.target.path
    assert file is not None
    if choice.recommended and choice.draft:
        note(f"draft: {choice.draft.name}, recommended for {choice.target.name} (--draft none does without)")
    return file, choice.draft.path if choice.draft else None


def _on_hub(choice: Choice, fetcher: Fetcher) -> list[RemoteModel]:
    """What is missing, on the hub; nothing if that is only a draft that nobody named, and the hub does not give it."""
    try:
        return fetcher.look_up(choice.missing)
    except HubError:
        if choice.target.path is None or not choice.recommended:
            raise
        return []


def way_to_draft(name: str | None) -> str | None:
    """What gets a draft for a target without one, which is here; None if it was measured to be fastest without."""
    target = locate(name or embedded.NAME)
    fastest = made.find_fastest(target.path) if target.path else None
    if target.path is None or (fastest and fastest.path is None):
        return None
    if names := recommended_drafts(target):
        return f"`specrun pull {names[0]}` fetches one"
    file = GgufFile.read(target.path)
    if own_head(file):
        return "`specrun tune` measures whether its MTP layers pay (--draft mtp)"
    if recurrent_layers(file):
        return "a smaller model of its family can be its --draft"
    return f"`specrun models make-draft {shlex.quote(target.name)}` makes one"


def drafts_here(name: str | None) -> list[str]:
    """Names of a target's drafts that are here: the draft and the head made from it, its MTP layers, and the catalog's
    drafts.

    A head is not used before it was found to be the fastest. So where there are heads only, `none` comes first.
    """
    target = locate(name or embedded.NAME)
    path = target.path
    found = [made.find(path, kind) for kind in made.KINDS] if path else [None, None]
    draft, head = ([str(one.path)] if one and one.path.exists() else [] for one in found)
    heads = [*head, *([OWN_HEAD] if path and own_head(GgufFile.read(path)) else [])]
    others = [str(embedded.DRAFT)] if embedded.is_meant(name) else []
    others += [other for other in recommended_drafts(target) if locate(other).path]
    alone = [NO_DRAFT] if heads and not draft and not others else []
    return [*alone, *draft, *heads, *others]


def _kept_pair(target: Path, name: str | None, note: Callable[[str], None]) -> tuple[Path, Path | None] | None:
    """The target's file with the draft that was measured as its fastest, else with the one that `specrun models
    make-draft` made from it, if these are still here.
    """
    if fastest := made.find_fastest(target):
        if fastest.path is None:
            note("no draft: `specrun tune` measured that this target is fastest without one (--draft names one anyway)")
            return target, None
        if fastest.path.exists():
            note(f"draft: {fastest.name}, the fastest that `specrun tune` measured (--draft none does without)")
            return target, fastest.path
        note(f"the draft {fastest.path}, which was the fastest, is gone; `specrun tune` compares those that are here")
    if draft := made.find(target):
        if draft.path.exists():
            note(f"draft: made from {name or 'the embedded target'}, {draft.how} (--draft none does without)")
            return target, draft.path
        note(f"the made draft {draft.path} is gone; `specrun models make-draft` makes it again")
    return None
