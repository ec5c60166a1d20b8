"""The models on this machine that a person can choose from."""

from __future__ import annotations

from dataclasses import dataclass

from specrun.catalog import cache, entries, names


@dataclass(frozen=True)
class LocalModel:
    """A model on this machine. name: what `--target` takes. n_bytes: of its files; None if the catalog does not say."""

    name: str
    n_bytes: int | None


def local_models() -> list[LocalModel]:
    """The models in the hub's cache, those of the catalog first. The embedded pair is not among them."""
    catalog = entries.catalog().values()
    known = {(entry.repo, entry.file): entry for entry in catalog}
    found = [
        LocalModel(entry.alias, entry.bytes)
        for entry in catalog
        if cache.find(names.HubName(entry.alias, entry.repo, entry.revision, entry.file, None, entry))
    ]
    others = [model for model in cache.models() if (model.repo, model.file) not in known]
    return found + [LocalModel(f"{model.repo}/{model.file}", model.bytes) for model in others]
