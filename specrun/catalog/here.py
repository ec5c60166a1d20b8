"""All models on this machine that can be targets or drafts: in the hub's cache, and where other programs keep them.

What `name` says is what `--target` takes: an alias, ORG/REPO:QUANT, where several files are called so
ORG/REPO/FILE.gguf, `ollama:NAME:TAG`, or a path.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from specrun.catalog import cache, ollama, others
from specrun.catalog.architectures import does
from specrun.catalog.entries import Entry, catalog
from specrun.catalog.file_names import quantization, with_quantization
from specrun.catalog.gguf_header import Metadata, read_beginning
from specrun.catalog.names import HubName
from specrun.catalog.not_models import kind_of
from specrun.errors import ModelFileError
from specrun.locations import user_path

_NO_DRAFTS = ("t5", "t5encoder")  # models that encode a text first
_HEADS = ("eagle3", "dflash")


@dataclass(frozen=True)
class LocalModel:
    """A model on this machine."""

    name: str  # what `--target` takes
    path: Path  # of its first file
    n_bytes: int  # of all its files
    program: str | None = None  # that keeps it; None for the hub's cache
    entry: Entry | None = None  # the catalog's
    repo: str | None = None  # on the hub
    file: str | None = None  # in `repo`


def local_models(with_heads: bool = False) -> list[LocalModel]:
    """The models, those that came last first. Adapters, projectors and models of embeddings are left out.

    with_heads: whether heads, which can only draft, are among them. A file that two programs keep is named once, and
    what is damaged in another program's folder not at all.
    """
    found: dict[str, tuple[float, LocalModel]] = {}
    files: dict[str | None, set[str]] = {}
    for model in _all():
        files.setdefault(model.repo, set()).add(model.file or "")
        with suppress(OSError):
            real = os.path.realpath(model.path)
            if real not in found and _is_shown(model, with_heads):
                found[real] = Path(real).stat().st_mtime, model
    models = [model for _, model in sorted(found.values(), key=lambda it: (-it[0], it[1].name))]
    return [replace(model, name=_short_name(model, files[model.repo])) for model in models]


def _short_name(model: LocalModel, files: set[str]) -> str:
    """ORG/REPO:QUANT for a file of the hub that the catalog does not have, where that means no other of the `files` of
    its repository that are here; else its name.
    """
    named = quantization(model.file) if model.repo and model.file and not model.entry else None
    if model.repo and named and with_quantization(files, model.repo, named) == [model.file]:
        return f"{model.repo}:{named}"
    return model.name


def find(model: HubName) -> Path | None:
    """The file on this machine that a name of the hub means: in the hub's cache, else where other programs keep it."""
    if path := cache.find(model):
        return path
    kept = others.find(model)
    return kept.path if kept else None


def _all() -> Iterator[LocalModel]:
    entries = {(entry.repo, entry.file): entry for entry in catalog().values()}

    def of_hub(repo: str, file: str, path: Path, n_bytes: int, program: str | None) -> LocalModel:
        entry = entries.get((repo, file))
        name = entry.alias if entry else f"{repo}/{file}"
        return LocalModel(name, path, n_bytes, program, entry, repo, file)

    for cached in cache.models():
        yield of_hub(cached.repo, cached.file, cached.path, cached.bytes, None)
    for kept in others.models():
        if kept.repo:
            yield of_hub(kept.repo, kept.file, kept.path, kept.bytes, kept.program)
        else:
            yield LocalModel(_short(kept.path), kept.path, kept.bytes, kept.program)
    for model in ollama.models():
        yield LocalModel(model.name, model.path, model.bytes, "Ollama")


def _short(path: Path) -> str:
    """A path as people write it."""
    with suppress(ValueError):
        return str(Path("~") / path.relative_to(user_path("~")))
    return str(path)


def _is_shown(model: LocalModel, with_heads: bool) -> bool:
    """Whether a model writes texts, or is a head and asked for, by what its file says before the vocabulary."""
    try:
        metadata = read_beginning(model.path)
        has_only_mtp = _has_only_mtp(model.path, metadata)
    except ModelFileError:
        return model.program is None  # `specrun models info` says what is wrong with it, `specrun models rm` deletes it
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture in _NO_DRAFTS:
        return False
    embeds = metadata.get(f"{architecture}.pooling_type") or metadata.get(f"{architecture}.attention.causal") is False
    is_model = kind_of(metadata) is None and f"{architecture}.block_count" in metadata
    is_head = architecture in _HEADS or does("reads_cache", architecture) or has_only_mtp
    return is_model and not embeds and (with_heads or not is_head)


def _has_only_mtp(path: Path, metadata: Metadata) -> bool:
    """Whether a file has the MTP layers of a model and not the model. Only the list of tensors tells. As it takes
    longer to read, only files that are named so are asked.
    """
    is_named = "mtp" in f"{path.parent.name}/{path.name}".lower()
    counts = is_named and metadata.get(f"{metadata.get('general.architecture')}.nextn_predict_layers")
    if not counts:
        return False
    from specrun.catalog.gguf_file import GgufFile  # with numpy, for which completion does not wait
    from specrun.catalog.heads import head_in

    return head_in(GgufFile.read(path)) is not None
