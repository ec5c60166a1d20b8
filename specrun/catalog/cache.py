"""The Hugging Face cache on disk, in the layout that the hub's client documents and llama.cpp shares.

    models--ORG--REPO/blobs/SHA256              a file, named by the hash of its content
    models--ORG--REPO/blobs/SHA256.incomplete   the part of a file that an interrupted download fetched
    models--ORG--REPO/snapshots/COMMIT/FILE     a link to a blob
    models--ORG--REPO/refs/main                 the commit that `main` named when it was last fetched

A model counts as cached only if one snapshot has all its shards.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from specrun.catalog.file_names import ambiguous, models_among, shards, with_quantization
from specrun.catalog.hub import cache_dir, client
from specrun.catalog.names import HubName
from specrun.errors import HubError, UsageError
from specrun.locations import whole_file


@dataclass(frozen=True)
class CachedModel:
    """A complete model in the cache."""

    repo: str
    file: str  # name in the repository; of a split model, the first shard's
    path: Path  # of `file`
    bytes: int  # of all shards together


def folder(repo: str, root: Path | None = None) -> Path:
    """The folder of a repository in the cache. root: of another cache with the same layout."""
    return (root or cache_dir()) / f"models--{repo.replace('/', '--')}"


def roots() -> list[Path]:
    """The hub's cache, and the folder that llama.cpp uses instead where $LLAMA_CACHE names one."""
    return list(dict.fromkeys([cache_dir(), *(Path(own) for own in [os.environ.get("LLAMA_CACHE")] if own)]))


def find(model: HubName) -> Path | None:
    """Path of the cached file (or first shard) that a name means, or None. A pinned revision is preferred to `main`.

    Raises UsageError if it can mean several.
    """
    for snapshot in (s for root in roots() for s in _snapshots(folder(model.repo, root), model.revision)):
        files = [model.file] if model.file else with_quantization(_files(snapshot), model.repo, model.quantization)
        complete = [file for file in files if all((snapshot / shard).is_file() for shard in shards(file))]
        if len(complete) > 1:
            raise UsageError(ambiguous(model.name, model.repo, complete))
        if complete:
            return snapshot / complete[0]
    return None


def models() -> list[CachedModel]:
    """All complete GGUF models in the cache, each once, sorted by repository and file."""
    models: dict[tuple[str, str], CachedModel] = {}
    for repo_folder in (folder for root in roots() for folder in _repositories(root)):
        repo = repo_folder.name.removeprefix("models--").replace("--", "/", 1)
        for snapshot in _snapshots(repo_folder, None):
            for file in models_among(_files(snapshot)):
                paths = [snapshot / shard for shard in shards(file)]
                if (repo, file) not in models and all(path.is_file() for path in paths):
                    n_bytes = sum(path.stat().st_size for path in paths)
                    models[repo, file] = CachedModel(repo, file, snapshot / file, n_bytes)
    return [models[key] for key in sorted(models)]


def _repositories(root: Path) -> list[Path]:
    with suppress(OSError):
        return list(root.glob("models--*--*"))
    return []


def file_in_repository(repo: str, path: Path) -> str:
    """The name that a cached file, as returned by `find`, has in its repository."""
    return "/".join(path.relative_to(folder(repo)).parts[2:])


def register(repo: str, revision: str, commit: str, blobs: dict[str, Path]) -> Path:
    """Link blobs, by file name and in the order of shards, as files of `commit`, which `revision` is now."""
    snapshot = folder(repo) / "snapshots" / commit
    # The first shard comes last: llama.cpp and other programs look for it and expect the rest to be there.
    for file, blob in reversed(blobs.items()):
        pointer = snapshot / file
        if not pointer.exists():
            pointer.parent.mkdir(parents=True, exist_ok=True)
            try:
                pointer.unlink(missing_ok=True)  # a link to a blob that is gone
                pointer.symlink_to(os.path.relpath(blob, pointer.parent))
            except FileExistsError:
                pass  # another process has linked it meanwhile
            except OSError:
                # Without symbolic links (often on Windows) the file itself is moved there, as the hub's client does.
                shutil.move(blob, pointer)
    if revision != commit:
        with whole_file(folder(repo) / "refs" / revision) as ref:
            ref.write(commit.encode())
    return snapshot / next(iter(blobs))


def remove(repo: str, file: str) -> int:
    """Delete a model with blobs that no other file uses. Returns the number of bytes freed. Raises HubError."""
    repo_folder = folder(repo)
    with disk_errors_as_hub_errors():
        for snapshot in _snapshots(repo_folder, None):
            for shard in shards(file):
                if not (snapshot / shard).exists():
                    (snapshot / shard).unlink(missing_ok=True)  # a link to a blob that is gone
        freed = client.delete_cached(repo, shards(file))
        for partial in repo_folder.glob("blobs/*.incomplete"):
            freed += partial.stat().st_size
            partial.unlink()
    if any((snapshot / shard).exists() for snapshot in _snapshots(repo_folder, None) for shard in shards(file)):
        raise HubError(f"{file} cannot be deleted; check who may write in {repo_folder}")
    if not any(path.is_file() for path in repo_folder.glob("snapshots/**/*")):
        shutil.rmtree(repo_folder, ignore_errors=True)
    return freed


@contextmanager
def disk_errors_as_hub_errors() -> Iterator[None]:
    """Turn an OSError inside the `with` block into a HubError that says what to do."""
    try:
        yield
    except HubError:
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise HubError(disk_full("no space is left")) from error
        path = error.filename or cache_dir()
        raise HubError(f"{path} cannot be written: {error.strerror}; set HF_HOME to another folder") from error


def disk_full(what: str) -> str:
    """The message for a cache disk without enough space; `what` gives the details."""
    return f"the disk of {cache_dir()} is too full: {what}; free some, or set HF_HOME to a folder on another disk"


def _snapshots(repo_folder: Path, revision: str | None) -> Iterator[Path]:
    """Snapshot folders of a repository: that of `revision`, then that of `main`, then the others, newest first."""
    try:
        folders = {path.name: path for path in (repo_folder / "snapshots").iterdir() if path.is_dir()}
    except OSError:
        return
    first = [_commit(repo_folder, name) for name in (revision, "main") if name]
    order = sorted(folders, key=lambda name: folders[name].stat().st_mtime, reverse=True)
    for name in dict.fromkeys([*first, *order]):
        if name in folders:
            yield folders[name]


def _commit(repo_folder: Path, revision: str) -> str:
    try:
        return (repo_folder / "refs" / revision).read_text(encoding="utf-8").strip()
    except OSError:
        return revision


def _files(snapshot: Path) -> list[str]:
    return [path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.is_file()]
