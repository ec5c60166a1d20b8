"""The models that Ollama keeps on this machine. They are read in place and never changed.

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
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from specrun.locations import parse_json, user_path

PREFIX = "ollama:"
_LIBRARY = ("registry.ollama.ai", "library")
_LATEST = "latest"  # the tag of a name without one
_KIND = "application/vnd.ollama.image."
# The user's folder, and where Ollama's service keeps its models: by its installer, and in packages of distributions.
_FOLDERS = ("~/.ollama/models", "/usr/share/ollama/.ollama/models", "/var/lib/ollama", "/var/lib/ollama/models")
_DIGEST = re.compile("sha256:[0-9a-f]{64}")
_MOST_BYTES = 2**20  # of a manifest, a template or a message


@dataclass(frozen=True)
class OllamaModel:
    """A model that Ollama keeps."""

    name: str  # as `ollama list` shows it, with PREFIX in front
    path: Path  # of the GGUF file
    bytes: int
    layers: dict[str, Path]  # the other layers' files by their kind, such as `template` and `system`

    @cached_property
    def system(self) -> str | None:
        """The system message that the model was made with."""
        return _text(self.layers.get("system"))

    @cached_property
    def template(self) -> str | None:
        """The chat template, in Go's template language."""
        return _text(self.layers.get("template"))


def folders() -> list[Path]:
    """Where Ollama may keep models: `$OLLAMA_MODELS`, else the user's folder and those of a service."""
    if own := os.environ.get("OLLAMA_MODELS"):
        return [Path(own)]
    return list(map(user_path, _FOLDERS))


def models() -> list[OllamaModel]:
    """All models, sorted by name. What is damaged, incomplete or may not be read is left out."""
    found: dict[str, OllamaModel] = {}
    for folder in folders():
        for manifest in _manifests(folder / "manifests"):
            if (model := _read(folder, manifest)) and model.name not in found:
                found[model.name] = model
    return [found[name] for name in sorted(found)]


def find(name: str) -> OllamaModel | None:
    """The model that Ollama calls `name`, with or without PREFIX, and with or without the tag `latest`."""
    wanted = name.lower().removeprefix(PREFIX).removeprefix("//")
    wanted += "" if ":" in wanted else f":{_LATEST}"
    return next((model for model in models() if model.name.lower() == f"{PREFIX}{wanted}"), None)


def behind(name: str | None, path: Path) -> OllamaModel | None:
    """The model that a target's name means, if its file is `path`."""
    model = find(name) if name else None
    return model if model and model.path == path else None


def is_named(name: str) -> bool:
    """Whether a name says that the model is Ollama's."""
    return name.lower().startswith(PREFIX)


def _manifests(folder: Path) -> Iterator[Path]:
    with suppress(OSError):
        yield from folder.glob("*/*/*/*")


def _read(folder: Path, manifest: Path) -> OllamaModel | None:
    """The model of a manifest; None if it is none that llama.cpp can run."""
    host, namespace, model, tag = manifest.parts[-4:]
    try:
        layers = {layer["mediaType"].removeprefix(_KIND): layer for layer in parse_json(_bytes(manifest))["layers"]}
        if not all(_DIGEST.fullmatch(layer["digest"]) for layer in layers.values()) or "adapter" in layers:
            return None
        paths = {kind: folder / "blobs" / layer["digest"].replace(":", "-") for kind, layer in layers.items()}
        path = paths.pop("model")
        if path.stat().st_size != layers["model"]["size"]:
            return None
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    where = "" if (host, namespace) == _LIBRARY else f"{namespace}/" if host == _LIBRARY[0] else f"{host}/{namespace}/"
    return OllamaModel(f"{PREFIX}{where}{model}:{tag}", path, layers["model"]["size"], paths)


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
