"""All models on this machine that can be targets or drafts: in the hub's cache, and where other programs keep them.

What `name` says is what `--target` takes: an alias, ORG/REPO:QUANT, where several files are called so
ORG/REPO/FILE.gguf, `ollama:NAME:TAG`, or a path. What other programs keep is read in place and never changed.

LM Studio keeps files of the hub outside its cache, as models/PUBLISHER/MODEL/FILE.gguf below its folder, or where its
settings say. Ollama's models lie below its folder as

    manifests/HOST/NAMESPACE/NAME/TAG   JSON: the layers of a model, each with its kind (mediaType) and digest
    blobs/sha256-HEX                    a layer: a GGUF file, a chat template in Go's template language, or a text

`ollama list` leaves out the host and the namespace of its own library, and so do the names here: `ollama:qwen2.5:7b`.
Models with an adapter are left out, because without it they would not be what their name says, and so are models that
are not one GGUF file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from specrun.catalog import cache
from specrun.catalog.cache import LocalModel
from specrun.catalog.entries import catalog, does
from specrun.catalog.file_names import (
    ambiguous,
    is_safe_path,
    is_safe_repo,
    models_among,
    quantization,
    shards,
    with_quantization,
)
from specrun.catalog.gguf_header import Metadata, kind_of
from specrun.catalog.gguf_reader import read_beginning
from specrun.catalog.hub import HubName
from specrun.errors import ModelFileError, UsageError
from specrun.locations import file_state, parse_json, user_path

OLLAMA = "ollama:"  # begins the names of Ollama's models
_NO_DRAFTS = ("t5", "t5encoder")  # models that encode a text first
_HEADS = ("eagle3", "dflash")
_DEPTH = 4  # folders of LM Studio's that are searched; links may lead in circles
_LIBRARY = ("registry.ollama.ai", "library")
_LATEST = "latest"  # the tag of a name without one
_KIND = "application/vnd.ollama.image."
# The user's folder, and where Ollama's service keeps its models: by its installer, and in packages of distributions.
_OLLAMA_FOLDERS = (
    "~/.ollama/models", "/usr/share/ollama/.ollama/models", "/var/lib/ollama", "/var/lib/ollama/models",
)  # fmt: skip
_DIGEST = re.compile("sha256:[0-9a-f]{64}")
_MOST_BYTES = 2**20  # of a manifest, a template or a message


def local_models(with_heads: bool = False) -> list[LocalModel]:
    """All of them, the newest file first. Adapters, projectors and models of embeddings are left out.

    with_heads: whether heads, which can only draft, are among them. A file that two programs keep is named once, and
    what is damaged in another program's folder not at all.
    """
    found: dict[tuple[int, int, int, int], LocalModel] = {}
    files: dict[str | None, set[str]] = {}
    for model in _all():
        files.setdefault(model.repo, set()).add(model.file or "")
        state = file_state(model.path)
        if any(state) and state not in found and _is_shown(model.path, with_heads, unreadable=model.program is None):
            found[state] = model
    newest = sorted(found.items(), key=lambda it: (-it[0][-1], it[1].name))
    return [replace(model, name=_short_name(model, files[model.repo])) for _, model in newest]


def _short_name(model: LocalModel, files: set[str]) -> str:
    """ORG/REPO:QUANT for a file of the hub that the catalog does not have, where that means no other of the `files` of
    its repository that are here; else its name.
    """
    named = quantization(model.file) if model.repo and model.file and not model.entry else None
    if model.repo and named and with_quantization(files, model.repo, named) == [model.file]:
        return f"{model.repo}:{named}"
    return model.name


def beside(path: Path) -> list[Path]:
    """The other models and heads in the folder of a model's file, by name. What cannot be read is left out."""
    names = models_among(file.name for file in path.parent.glob("*"))
    files = (path.with_name(name) for name in names if name != path.name)
    return [file for file in files if _is_shown(file, with_heads=True, unreadable=False)]


def find(model: HubName) -> Path | None:
    """The file on this machine that a name of the hub means: in the hub's cache, else where LM Studio keeps it.

    Raises UsageError if it can mean several.
    """
    if path := cache.find(model):
        return path
    kept = {
        one.file or "": one.path for one in reversed(_of_lm_studio()) if (one.repo or "").lower() == model.repo.lower()
    }
    files = [model.file] if model.file else with_quantization(kept, model.repo, model.quantization)
    if len(files) > 1:
        raise UsageError(ambiguous(model.name, model.repo, files))
    return kept.get(files[0]) if files else None


def _all() -> Iterator[LocalModel]:
    entries = {(entry.repo, entry.file): entry for entry in catalog().values()}
    for model in [*cache.models(), *_of_lm_studio()]:
        entry = entries.get((model.repo or "", model.file or ""))
        of_hub = f"{model.repo}/{model.file}" if model.repo else _short(model.path)
        yield replace(model, name=entry.alias if entry else of_hub, entry=entry)
    yield from ollama_models()


def _short(path: Path) -> str:
    """A path as people write it."""
    with suppress(ValueError):
        return str(Path("~") / path.relative_to(user_path("~")))
    return str(path)


def _is_shown(path: Path, with_heads: bool, unreadable: bool) -> bool:
    """Whether a model writes texts, or is a head and asked for, by what its file says before the vocabulary.

    unreadable: whether it is shown if its file cannot be read.
    """
    try:
        metadata = read_beginning(path)
        has_only_mtp = _has_only_mtp(path, metadata)
    except ModelFileError:
        return unreadable  # `specrun models info` says what is wrong with it, `specrun models rm` deletes it
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


# --- LM Studio -------------------------------------------------------------------------------------------------------


def _of_lm_studio() -> list[LocalModel]:
    """What LM Studio keeps, without names, each once. What is incomplete or unreadable is left out."""
    found: dict[Path, LocalModel] = {}
    for folder in _lm_studio_folders():
        for path in _files(folder):
            repo = "/".join(path.relative_to(folder).parts[:-1])  # elsewhere than two folders deep none of the hub's
            named = (repo, path.name) if is_safe_repo(repo) and is_safe_path(path.name) else ()
            with suppress(OSError):  # one of its files is missing
                n_bytes = sum(path.with_name(name).stat().st_size for name in shards(path.name))
                found.setdefault(path, LocalModel("", path, n_bytes, "LM Studio", None, *named))
    return list(found.values())


def _lm_studio_folders() -> list[Path]:
    homes = [user_path("~/.lmstudio"), user_path("~/.cache/lm-studio")]
    with suppress(OSError, UnicodeDecodeError):
        homes.insert(0, Path(user_path("~/.lmstudio-home-pointer").read_text(encoding="utf-8").strip()))
    folders = []
    for home in homes:
        with suppress(OSError, ValueError, LookupError, TypeError):
            folders.append(Path(parse_json((home / "settings.json").read_bytes())["downloadsFolder"]))
        folders.append(home / "models")
    return [folder for folder in dict.fromkeys(folders) if folder.is_absolute() and "\0" not in str(folder)]


def _files(folder: Path) -> Iterator[Path]:
    """The models in a folder and below, by their first files."""
    for where, below, names in os.walk(folder, followlinks=True):
        if len(Path(where).relative_to(folder).parts) >= _DEPTH:
            below.clear()
        yield from (Path(where) / name for name in models_among(names))


# --- Ollama ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OllamaModel(LocalModel):
    """A model that Ollama keeps, by the name that `ollama list` shows, with OLLAMA in front."""

    layers: dict[str, Path] = field(default_factory=dict)  # the other layers' files by their kind, such as `template`

    @cached_property
    def system(self) -> str | None:
        """The system message that the model was made with."""
        return _text(self.layers.get("system"))

    @cached_property
    def template(self) -> str | None:
        """The chat template, in Go's template language."""
        return _text(self.layers.get("template"))


def ollama_models() -> list[OllamaModel]:
    """All models in `$OLLAMA_MODELS`, else in the user's folder and those of a service, sorted by name. What is
    damaged, incomplete or may not be read is left out.
    """
    own = os.environ.get("OLLAMA_MODELS")
    found: dict[str, OllamaModel] = {}
    for folder in [Path(own)] if own else list(map(user_path, _OLLAMA_FOLDERS)):
        with suppress(OSError):
            for manifest in folder.glob("manifests/*/*/*/*"):
                if model := _of_manifest(folder, manifest):
                    found.setdefault(model.name, model)
    return [found[name] for name in sorted(found)]


def of_ollama(name: str) -> OllamaModel | None:
    """The model that Ollama calls `name`, with or without OLLAMA, and with or without the tag `latest`."""
    wanted = name.lower().removeprefix(OLLAMA).removeprefix("//")
    wanted += "" if ":" in wanted else f":{_LATEST}"
    return next((model for model in ollama_models() if model.name.lower() == f"{OLLAMA}{wanted}"), None)


def ollama_behind(name: str | None, path: Path) -> OllamaModel | None:
    """The model of Ollama's that a target's name means, if its file is `path`."""
    model = of_ollama(name) if name else None
    return model if model and model.path == path else None


def is_of_ollama(name: str) -> bool:
    """Whether a name says that the model is Ollama's."""
    return name.lower().startswith(OLLAMA)


def _of_manifest(folder: Path, manifest: Path) -> OllamaModel | None:
    """The model of a manifest; None if it is none that llama.cpp can run."""
    host, namespace, model, tag = manifest.parts[-4:]
    try:
        layers = {layer["mediaType"].removeprefix(_KIND): layer for layer in parse_json(_bytes(manifest))["layers"]}
        if not all(_DIGEST.fullmatch(layer["digest"]) for layer in layers.values()) or "adapter" in layers:
            return None
        paths = {kind: folder / "blobs" / layer["digest"].replace(":", "-") for kind, layer in layers.items()}
        path, n_bytes = paths.pop("model"), layers["model"]["size"]
        if path.stat().st_size != n_bytes:
            return None
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    where = "" if (host, namespace) == _LIBRARY else f"{namespace}/" if host == _LIBRARY[0] else f"{host}/{namespace}/"
    return OllamaModel(f"{OLLAMA}{where}{model}:{tag}", path, n_bytes, "Ollama", layers=paths)


def _text(path: Path | None) -> str | None:
    """The text of a layer; None if there is none, or it cannot be read."""
    if path is None:
        return None
    with suppress(OSError, UnicodeDecodeError):
        return _bytes(path).decode().strip() or None
    return None


def _bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_MOST_BYTES)
