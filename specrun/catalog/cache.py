"""The Hugging Face cache on disk, in the layout that the hub's client documents and llama.cpp shares, and downloads.

    models--ORG--REPO/blobs/SHA256              a file, named by the hash of its content
    models--ORG--REPO/blobs/SHA256.incomplete   the part of a file that an interrupted download fetched
    models--ORG--REPO/snapshots/COMMIT/FILE     a link to a blob
    models--ORG--REPO/refs/main                 the commit that `main` named when it was last fetched

A model counts as cached only if one snapshot has all its shards, which are complete and verified then. The hub's own
client (2.4) discards an interrupted download, which costs too much with files of many gigabytes. So specrun reads
through the client's session but writes its own partial file, which the next download continues
(docs/adr/0004-resumable-downloads.md).
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from specrun.catalog.entries import Entry
from specrun.catalog.file_names import ambiguous, models_among, shards, with_quantization
from specrun.catalog.hub import HubName, RefusedError, address, cache_dir, client, max_http_bytes
from specrun.catalog.hub.client import RemoteFile, RemoteModel
from specrun.display_text import size_text
from specrun.errors import HubError, UsageError
from specrun.locations import existing_folder, file_bytes, whole_file


@dataclass(frozen=True)
class LocalModel:
    """A model on this machine."""

    name: str  # what `--target` takes
    path: Path  # of its first file
    n_bytes: int  # of all its files
    program: str | None = None  # that keeps it; None for the hub's cache
    entry: Entry | None = None  # the catalog's
    repo: str | None = None  # on the hub
    file: str | None = None  # in `repo`; of a split model, the first shard


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


def models() -> list[LocalModel]:
    """All complete GGUF models in the cache, each once, sorted by repository and file, without names."""
    models: dict[tuple[str, str], LocalModel] = {}
    for repo_folder in (folder for root in roots() for folder in _repositories(root)):
        repo = repo_folder.name.removeprefix("models--").replace("--", "/", 1)
        for snapshot in _snapshots(repo_folder, None):
            for file in models_among(_files(snapshot)):
                paths = [snapshot / shard for shard in shards(file)]
                if (repo, file) not in models and all(path.is_file() for path in paths):
                    n_bytes = sum(path.stat().st_size for path in paths)
                    models[repo, file] = LocalModel("", snapshot / file, n_bytes, repo=repo, file=file)
    return [models[key] for key in sorted(models)]


def _repositories(root: Path) -> list[Path]:
    with suppress(OSError):
        return list(root.glob("models--*--*"))
    return []


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


def remove(repo: str, path: Path) -> int:
    """Delete a model with blobs that no other file uses. Returns the number of bytes freed. Raises HubError.

    path: of its first file, as returned by `find`.
    """
    repo_folder = folder(repo)
    file = "/".join(path.relative_to(repo_folder).parts[2:])
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


_LOOK_UP_RETRIES = 3
_DOWNLOAD_RETRIES = 6  # in a row without a new byte; with the doubling waits of `_wait` they take about a minute
_MOST_REFUSALS = 2  # in a row, after which a file is fetched from its beginning
_MAX_WAIT_S = 60.0
_HASH_BYTES = 1 << 22  # bytes read at once for the SHA-256


class Progress:
    """What a download tells of itself, file after file. Nothing is shown; who shows it overrides these methods."""

    def start(self, what: str, total: int, done: int) -> None:
        """The download of a file of `total` bytes begins; `done` bytes are already on disk."""

    def check(self, what: str, total: int) -> None:
        """The file of `total` bytes is complete, and its checksum is being computed."""

    def checked(self, what: str) -> None:
        """The checksum is right."""

    def advance(self, n_bytes: int) -> None:
        """`n_bytes` more were downloaded or checked; negative if the download goes back."""

    def note(self, text: str) -> None:
        """A message for the user."""


def look_up(model: HubName, progress: Progress) -> RemoteModel:
    """Ask the hub for a model's files, again after errors that may pass. Raises HubError."""
    for attempt in range(_LOOK_UP_RETRIES):
        try:
            remote = client.look_up(model)
            break
        except HubError as error:
            _wait(error, attempt, progress)
    else:
        remote = client.look_up(model)
    if model.revision not in (None, remote.revision):
        progress.note(f"{model.repo} has no revision {model.revision} any more; taking its newest")
    return remote


def missing_bytes(model: RemoteModel) -> int:
    """Number of bytes of a model that are not on disk yet."""
    return sum(file.bytes - file_bytes(_blob(model, file)) - file_bytes(_partial(model, file)) for file in model.files)


def free_bytes() -> int:
    """Free bytes on the disk of the cache."""
    return shutil.disk_usage(existing_folder(cache_dir())).free


def check_disk(models: Sequence[RemoteModel]) -> int:
    """Free bytes on the disk of the cache. Raises HubError if the missing parts of `models` do not fit there."""
    free = free_bytes()
    needed = sum(missing_bytes(model) for model in models)
    if needed > free:
        raise HubError(disk_full(f"{size_text(needed)} are needed and {size_text(free)} are free"))
    return free


def pull(model: RemoteModel, progress: Progress) -> Path:
    """Download what is missing of a model, verify it, add it to the cache. Returns its first file. Raises HubError."""
    with disk_errors_as_hub_errors():
        for number, file in enumerate(model.files, 1):
            part = f" {number}/{len(model.files)}" if len(model.files) > 1 else ""
            _pull_file(model, file, f"{model.name.rpartition('/')[2]}{part}", progress)
        blobs = {file.name: _blob(model, file) for file in model.files}
        return register(model.repo, model.revision, model.commit, blobs)


def _pull_file(model: RemoteModel, file: RemoteFile, name: str, progress: Progress) -> None:
    if _blob(model, file).exists():
        return
    if file.bytes > max_http_bytes():
        why = f"{file.name} has {size_text(file.bytes)}, and the hub sends files of this size only to its own client"
        raise HubError(f"{why}; run `hf download {model.repo} {file.name}`, then this again")
    unfinished = _partial(model, file)
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    lock = cache_dir() / ".locks" / folder(model.repo).name / f"{file.blob}.lock"
    with client.locked(lock, partial(progress.note, f"another process is fetching {file.name}; waiting for it")):
        if _blob(model, file).exists():
            return
        if file_bytes(unfinished) > file.bytes:
            unfinished.unlink()
        progress.start(name, file.bytes, file_bytes(unfinished))
        _fetch(model, file, unfinished, progress)
        progress.check(name, file.bytes)
        _check(file, unfinished, progress)
        progress.checked(name)
        unfinished.replace(_blob(model, file))


def _fetch(model: RemoteModel, file: RemoteFile, partial: Path, progress: Progress) -> None:
    """Append to `partial` until it has all bytes of the file. It stays as it is until better bytes come."""
    attempt = refusals = 0
    while (done := file_bytes(partial)) < file.bytes:
        came = False
        try:
            with (
                client.stream(model, file, done if refusals < _MOST_REFUSALS else 0) as (begin, pieces),
                partial.open("ab") as out,
            ):
                n_left = file.bytes - begin
                for piece in pieces:
                    if not came and begin < done:
                        progress.note(f"{address()} does not continue {file.name}; it comes from {size_text(begin)} on")
                        progress.advance(begin - done)
                        out.truncate(begin)
                    came = True
                    n_left -= len(piece)
                    if n_left < 0:
                        raise HubError(f"{address()} sends more than the {file.bytes} bytes that {file.name} has")
                    out.write(piece)
                    progress.advance(len(piece))
            if not came:
                raise HubError(f"{address()} sent nothing; try again later", 1.0)
        except HubError as error:
            if came:
                attempt = refusals = 0
            if isinstance(error, RefusedError):
                refusals = max(refusals + 1, _MOST_REFUSALS if error.by_range else 0)
            if error.wait_s is None or attempt == _DOWNLOAD_RETRIES or refusals > _MOST_REFUSALS:
                raise _with_kept(error, partial) from error
            _wait(error, attempt, progress)
            attempt += 1


def _with_kept(error: HubError, partial: Path) -> HubError:
    if not (kept := file_bytes(partial)):
        return error
    return HubError(f"{error} (the next pull continues at {size_text(kept)}, which are in {partial})")


def _check(file: RemoteFile, partial: Path, progress: Progress) -> None:
    """Compare size and SHA-256 with those of the hub. Deletes a file that differs and raises HubError."""
    digest = hashlib.sha256()
    if file.sha256 and file_bytes(partial) == file.bytes:
        with partial.open("rb") as content:
            while piece := content.read(_HASH_BYTES):
                digest.update(piece)
                progress.advance(len(piece))
    if file_bytes(partial) != file.bytes or file.sha256 not in (None, "", digest.hexdigest()):
        partial.unlink()
        raise HubError(f"{file.name} arrived damaged (its SHA-256 or size is wrong) and was deleted; fetch it again")


def _wait(error: HubError, attempt: int, progress: Progress) -> None:
    """Sleep before the next attempt, twice as long as before the last; raise the error if repeating cannot help."""
    if error.wait_s is None:
        raise error
    wait_s = min(error.wait_s * 2**attempt, max(error.wait_s, _MAX_WAIT_S))
    progress.note(f"{str(error).partition(';')[0]}; trying again in {wait_s:.0f} s")
    time.sleep(wait_s)


def _blob(model: RemoteModel, file: RemoteFile) -> Path:
    return folder(model.repo) / "blobs" / file.blob


def _partial(model: RemoteModel, file: RemoteFile) -> Path:
    return folder(model.repo) / "blobs" / f"{file.blob}.incomplete"
