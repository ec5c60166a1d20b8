"""The files of a target and its draft on this machine, fetched first where that is wanted."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from specrun.catalog import download, embedded, made, pairs, resolve
from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.heads import own_head
from specrun.catalog.hub.look_up import RemoteModel
from specrun.catalog.layer_states import recurrent_layers
from specrun.catalog.names import HubName
from specrun.errors import HubError, PairError


@dataclass
class Fetcher:
    """Fetches missing models if `may_fetch`, without asking and without showing anything."""

    may_fetch: bool

    def look_up(self, models: Sequence[HubName]) -> list[RemoteModel]:
        """Sizes, files and licences of models on the hub. Raises HubError."""
        return [download.look_up(model, download.Progress()) for model in models]

    def fetch(self, models: Sequence[RemoteModel]) -> bool:
        """Fetch models, unless the user declines. Returns whether all are here now. Raises HubError."""
        download.check_disk(models)
        for model in models:
            download.pull(model, download.Progress())
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
    if draft == resolve.OWN_HEAD:
        path, _ = local_pair(target, resolve.NO_DRAFT, drafting, fetcher, note)
        if own_head(GgufFile.read(path)) is None:
            raise PairError(f"{path.name} has no MTP layers that llama.cpp can draft with; give another --draft")
        return path, path if drafting else None
    if target and embedded.is_meant(target) and draft not in (None, resolve.NO_DRAFT, *embedded.DRAFTS):
        target = str(embedded.TARGET)  # with a draft of the user's own
    here = _target_path(target) if draft is None and drafting else None
    if here and (pair := _fastest_pair(here, note) or _made_pair(here, target, note)):
        return pair
    if target is None or embedded.is_meant(target):
        return embedded.TARGET, None if draft == resolve.NO_DRAFT else embedded.DRAFTS[draft or "draft"]
    named = draft if drafting else resolve.NO_DRAFT
    choice = resolve.choose(target, named, fetcher.may_fetch)
    if choice.draft and choice.draft.path is None:
        pairs.check_families(choice.target.entry, choice.draft.entry)
    if choice.missing and fetcher.may_fetch and (models := _on_hub(choice, fetcher)):
        resolve.check_remote(choice, models)
        if fetcher.fetch(models):
            choice = resolve.choose(target, named, may_fetch=True)
    if choice.missing:
        if choice.target.path is None or not choice.recommended:
            raise resolve.missing_error(choice.missing)
        choice = resolve.Choice(choice.target, None, recommended=True)
    file = choice.target.path
    assert file is not None
    if choice.recommended and choice.draft:
        note(f"draft: {choice.draft.name}, recommended for {choice.target.name} (--draft none does without)")
    return file, choice.draft.path if choice.draft else None


def _on_hub(choice: resolve.Choice, fetcher: Fetcher) -> list[RemoteModel]:
    """What is missing, on the hub; nothing if that is only a draft that nobody named, and the hub does not give it."""
    try:
        return fetcher.look_up(choice.missing)
    except HubError:
        if choice.target.path is None or not choice.recommended:
            raise
        return []


def way_to_draft(name: str | None) -> str | None:
    """What gets a draft for a target without one, which is here; None if it was measured to be fastest without."""
    target, path = resolve.locate(name or embedded.NAME), _target_path(name)
    fastest = made.find_fastest(path) if path else None
    if path is None or (fastest and fastest.path is None):
        return None
    if names := resolve.recommended_drafts(target):
        return f"`specrun pull {names[0]}` fetches one"
    file = GgufFile.read(path)
    if own_head(file):
        return "`specrun tune` measures whether its MTP layers pay (--draft mtp)"
    if recurrent_layers(file):
        return "a smaller model of its family can be its --draft"
    return f"`specrun models make-draft {shlex.quote(target.name)}` makes one"


def drafts_here(target: str | None) -> list[str]:
    """Names of a target's drafts that are here: the draft and the head made from it, its MTP layers, the catalog's
    drafts, and those that were trimmed for it.

    A head is not used before it was found to be the fastest. So where there are heads only, `none` comes first.
    """
    path = _target_path(target)
    draft, head = (_made_here(path, "draft"), _made_here(path, "head")) if path else ([], [])
    heads = [*head, *([resolve.OWN_HEAD] if path and own_head(GgufFile.read(path)) else [])]
    if target is None or embedded.is_meant(target):
        others = [str(embedded.DRAFT)]
    else:
        others = [name for name in resolve.recommended_drafts(resolve.locate(target)) if resolve.locate(name).path]
    others += map(str, made.trimmed_drafts(path)) if path else []
    alone = [resolve.NO_DRAFT] if heads and not draft and not others else []
    return [*alone, *draft, *heads, *others]


def _made_here(target: Path, kind: made.Kind) -> list[str]:
    """The name of what was made for the target, if it still is here."""
    found = made.find(target, kind)
    return [str(found.path)] if found and found.path.exists() else []


def _target_path(target: str | None) -> Path | None:
    """The target's file if it is on this machine."""
    return resolve.locate(target).path if target else embedded.TARGET


def _fastest_pair(target: Path, note: Callable[[str], None]) -> tuple[Path, Path | None] | None:
    """The target's file and the draft that was measured as its fastest, if that is still here."""
    if (draft := made.find_fastest(target)) is None:
        return None
    if draft.path is None:
        note("no draft: `specrun tune` measured that this target is fastest without one (--draft names one anyway)")
        return target, None
    if not draft.path.exists():
        note(f"the draft {draft.path}, which was the fastest, is gone; `specrun tune` compares those that are here")
        return None
    note(f"draft: {draft.name}, the fastest that `specrun tune` measured (--draft none does without)")
    return target, draft.path


def _made_pair(target: Path, name: str | None, note: Callable[[str], None]) -> tuple[Path, Path] | None:
    """The target's file and the draft that `specrun models make-draft` made from it, if that is still here."""
    if (draft := made.find(target)) is None:
        return None
    if not draft.path.exists():
        note(f"the made draft {draft.path} is gone; `specrun models make-draft` makes it again")
        return None
    note(f"draft: made from {name or 'the embedded target'}, {draft.how} (--draft none does without)")
    return target, draft.path
