"""Files of repositories on the hub that other programs fetched, outside the hub's cache. They are never changed.

    LM Studio                 models/PUBLISHER/MODEL/FILE.gguf below its folder, or where its settings say
    llama.cpp, until 2026     ORG_REPO_FILE.gguf in its own cache, with manifest=ORG=REPO=TAG.json, which names FILE

Newer releases of llama.cpp use the hub's cache.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from specrun.catalog.file_names import (
    ambiguous,
    is_safe_path,
    is_safe_repo,
    models_among,
    shards,
    with_quantization,
)
from specrun.catalog.names import HubName
from specrun.errors import UsageError
from specrun.locations import parse_json, user_path

LM_STUDIO, LLAMA_CPP = "LM Studio", "llama.cpp"
_DEPTH = 4  # folders of LM Studio's that are searched; links may lead in circles


@dataclass(frozen=True)
class KeptModel:
    """A complete model that another program keeps."""

    program: str
    path: Path  # of its first file
    bytes: int  # of all shards together
    repo: str | None = None  # ORG/REPO on the hub; None if that is not known
    file: str = ""  # name in the repository


def models() -> list[KeptModel]:
    """All models, each once. What is incomplete or may not be read is left out."""
    found: dict[Path, KeptModel] = {}
    for model in (*_of_lm_studio(), *_of_llama_cpp()):
        found.setdefault(model.path, model)
    return list(found.values())


def find(name: HubName) -> KeptModel | None:
    """The model that a name of the hub means, or None. Raises UsageError if it can mean several."""
    here = {model.file: model for model in reversed(models()) if model.repo and model.repo.lower() == name.repo.lower()}
    files = [name.file] if name.file else with_quantization(here, name.repo, name.quantization)
    if len(files) > 1:
        raise UsageError(ambiguous(name.name, name.repo, files))
    return here.get(files[0]) if files else None


def _of_lm_studio() -> Iterator[KeptModel]:
    for folder in _lm_studio_folders():
        for path in _files(folder):
            repo = "/".join(path.relative_to(folder).parts[:-1])  # elsewhere than two folders deep none of the hub's
            named = (repo, path.name) if is_safe_repo(repo) and is_safe_path(path.name) else ()
            if kept := _complete(LM_STUDIO, path, *named):
                yield kept


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


def _of_llama_cpp() -> Iterator[KeptModel]:
    try:
        usual = os.environ.get("LLAMA_CACHE") or platformdirs.user_cache_dir("llama.cpp", False, opinion=False)
    except RuntimeError:  # a user without a home
        return
    folder, named = Path(usual), set[Path]()
    for manifest in sorted(folder.glob("manifest=*=*=*.json")):
        org, repo = manifest.name.split("=")[1:3]
        with suppress(OSError, ValueError, LookupError, TypeError):
            file = str(parse_json(manifest.read_bytes())["ggufFile"]["rfilename"])
            path = folder / f"{org}_{repo}_{file}".replace("/", "_")
            if (
                is_safe_repo(f"{org}/{repo}")
                and is_safe_path(file)
                and (kept := _complete(LLAMA_CPP, path, f"{org}/{repo}", file))
            ):
                named.add(path)
                yield kept
    with suppress(OSError):
        for name in models_among(path.name for path in folder.iterdir()):
            if folder / name not in named and (kept := _complete(LLAMA_CPP, folder / name)):
                yield kept


def _complete(program: str, path: Path, repo: str | None = None, file: str = "") -> KeptModel | None:
    """The model whose first file is `path`; None if one of its files is missing."""
    try:
        n_bytes = sum(path.with_name(name).stat().st_size for name in shards(path.name))
    except OSError:
        return None
    return KeptModel(program, path, n_bytes, repo, file)
