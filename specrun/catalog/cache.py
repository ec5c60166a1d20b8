"""The Hugging Face cache on disk, in the layout that its own client documents and llama.cpp shares.

    models--ORG--REPO/blobs/SHA256              the files, by content
    models--ORG--REPO/blobs/SHA256.incomplete   what an interrupted download left
    models--ORG--REPO/snapshots/COMMIT/FILE     a link to a blob
    models--ORG--REPO/refs/main                 the commit that main was

A model counts as cached only if one snapshot has all its shards.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from specrun.catalog import hub
from specrun.catalog.names import HubName
from specrun.catalog.split import models_among, shards, with_quantization
from specrun.errors import HubError


@dataclass(frozen=True)
class CachedModel:
    """A model in the cache. path: its file, or its first shard; bytes: of all shards."""

    repo: str
    file: str
    path: Path
    bytes: int


def folder(repo: str) -> Path:
    """Where the cache keeps a repository."""
    return hub.cache_dir() / f"models--{repo.replace('/', '--')}"


def find(model: HubName) -> Path | None:
    """The cached file (or first shard) that a name means, or None. A pinned revision is found before `main`, and that
    before any other.
    """
    for snapshot in _snapshots(folder(model.repo), model.revision):
        files = [model.file] if model.file else with_quantization(_files(snapshot), model.quantization)
        for file in files:
            if all((snapshot / shard).is_file() for shard in shards(file)):
                return snapshot / file
    return None


def models() -> list[CachedModel]:
    """All complete GGUF models in the cache, each once, by repository and file."""
    found: dict[tuple[str, str], CachedModel] = {}
    if not hub.cache_dir().is_dir():
        return []
    for place in sorted(hub.cache_dir().glob("models--*--*")):
        repo = place.name.removeprefix("models--").replace("--", "/", 1)
        for snapshot in _snapshots(place, None):
            for file in models_among(_files(snapshot)):
                paths = [snapshot / shard for shard in shards(file)]
                if (repo, file) not in found and all(path.is_file() for path in paths):
                    n_bytes = sum(path.stat().st_size for path in paths)
                    found[repo, file] = CachedModel(repo, file, snapshot / file, n_bytes)
    return [found[key] for key in sorted(found)]


def file_in_repository(repo: str, path: Path) -> str:
    """The name in its repository of a cached file that `find` gave."""
    return "/".join(path.relative_to(folder(repo)).parts[2:])


def register(repo: str, revision: str, commit: str, blobs: dict[str, Path]) -> Path:
    """Make complete blobs visible as files of `commit`, all of them or none. Returns the first file's path."""
    snapshot = folder(repo) / "snapshots" / commit
    for file, blob in reversed(blobs.items()):  # the first shard, by which others look, comes last
        pointer = snapshot / file
        if not pointer.exists():
            pointer.parent.mkdir(parents=True, exist_ok=True)
            _link(pointer, blob)
    if revision != commit:
        _write_atomically(folder(repo) / "refs" / revision, commit)
    return snapshot / next(iter(blobs))


def remove(repo: str, file: str) -> int:
    """Delete all shards of a model from all snapshots, with their blobs, and what interrupted downloads of the
    repository left. A blob that another file still uses stays. Returns the bytes that this frees. Raises HubError.
    """
    place = folder(repo)
    with told_in_words():
        for snapshot in _snapshots(place, None):
            for shard in shards(file):
                if not (snapshot / shard).exists():
                    (snapshot / shard).unlink(missing_ok=True)  # a link to a blob that is gone
        freed = hub.delete_cached(repo, shards(file))
        for partial in place.glob("blobs/*.incomplete"):
            freed += partial.stat().st_size
            partial.unlink()
    if any((snapshot / shard).exists() for snapshot in _snapshots(place, None) for shard in shards(file)):
        raise HubError(f"{file} cannot be deleted; check who may write in {place}")
    if not any(path.is_file() for path in place.glob("snapshots/**/*")):
        shutil.rmtree(place, ignore_errors=True)
    return freed


@contextmanager
def told_in_words() -> Iterator[None]:
    """What the disk refuses, as a HubError."""
    try:
        yield
    except HubError:
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise HubError(disk_full("no space is left")) from error
        where = error.filename or hub.cache_dir()
        raise HubError(f"{where} cannot be written: {error.strerror}; set HF_HOME to a folder that can be") from error


def disk_full(what: str) -> str:
    """The message of a disk without room."""
    return f"the disk of {hub.cache_dir()} is too full: {what}; free some, or set HF_HOME to a folder on another disk"


def _snapshots(place: Path, revision: str | None) -> Iterator[Path]:
    """Snapshot folders of a repository, the wanted revision first, then `main`, then the newest."""
    try:
        folders = {path.name: path for path in (place / "snapshots").iterdir() if path.is_dir()}
    except OSError:
        return
    first = [_commit(place, name) for name in (revision, "main") if name]
    order = sorted(folders, key=lambda name: folders[name].stat().st_mtime, reverse=True)
    for name in dict.fromkeys([*first, *order]):
        if name in folders:
            yield folders[name]


def _commit(place: Path, revision: str) -> str:
    try:
        return (place / "refs" / revision).read_text(encoding="utf-8").strip()
    except OSError:
        return revision


def _files(snapshot: Path) -> list[str]:
    return [path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.is_file()]


def _link(pointer: Path, blob: Path) -> None:
    try:
        pointer.unlink(missing_ok=True)  # a link to a blob that is gone
        pointer.symlink_to(os.path.relpath(blob, pointer.parent))
    except FileExistsError:
        pass  # another process was quicker
    except OSError:
        # A disk without links, as on many a Windows machine: the file itself goes there, as with the hub's client.
        shutil.move(blob, pointer)


def _write_atomically(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    new.write_text(text, encoding="utf-8")
    new.replace(path)
