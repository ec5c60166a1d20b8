"""Fetch a model into the Hugging Face cache: resumable, checked, and visible only once it is complete.

The hub's own client (2.4) throws away what an interrupted download has got; for files of many gigabytes that is no
option, so the bytes go through its session but into a partial file of ours (docs/adr/0004-resumable-downloads.md).
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from specrun.catalog import cache, hub
from specrun.catalog.hub import RemoteFile, RemoteModel
from specrun.catalog.names import HubName
from specrun.errors import HubError
from specrun.units import size_text

_LOOK_UP_RETRIES = 3
_DOWNLOAD_RETRIES = 6  # in a row that bring nothing: a minute
_MAX_WAIT_S = 60.0
_HASH_BYTES = 1 << 22


class Progress(Protocol):
    """Who shows how far it is."""

    def start(self, what: str, total: int, done: int) -> None:
        """Something of `total` bytes begins, of which `done` are there."""

    def check(self, what: str, total: int) -> None:
        """Something of `total` bytes is there and is being checked."""

    def checked(self, what: str) -> None:
        """It is complete and right."""

    def advance(self, n_bytes: int) -> None:
        """`n_bytes` more of it, or fewer if negative."""

    def note(self, text: str) -> None:
        """Something to know."""


def look_up(model: HubName, progress: Progress) -> RemoteModel:
    """`hub.look_up`, tried again where that may help."""
    found = _look_up_patiently(model, progress)
    if model.revision not in (None, found.revision):
        progress.note(f"{model.repo} no longer has the revision of the catalog; taking its newest")
    return found


def _look_up_patiently(model: HubName, progress: Progress) -> RemoteModel:
    for attempt in range(_LOOK_UP_RETRIES):
        try:
            return hub.look_up(model)
        except HubError as error:
            _wait(error, attempt, progress)
    return hub.look_up(model)


def missing_bytes(model: RemoteModel) -> int:
    """What still has to be fetched."""
    return sum(file.bytes - _n_bytes(_blob(model, file)) - _n_bytes(_partial(model, file)) for file in model.files)


def check_disk(models: Sequence[RemoteModel]) -> int:
    """The free bytes where the cache is. Raises HubError if `models` do not fit there."""
    place = hub.cache_dir()
    while not place.exists() and place != place.parent:
        place = place.parent
    free = shutil.disk_usage(place).free
    needed = sum(missing_bytes(model) for model in models)
    if needed > free:
        raise HubError(cache.disk_full(f"{size_text(needed)} are needed and {size_text(free)} are free"))
    return free


def pull(model: RemoteModel, progress: Progress) -> Path:
    """Fetch what is missing of a model, check it, then make it visible. Returns its file, or its first shard.

    Raises HubError. What has come so far stays, and the next pull goes on from there.
    """
    with cache.told_in_words():
        for number, file in enumerate(model.files, 1):
            part = f" {number}/{len(model.files)}" if len(model.files) > 1 else ""
            _pull_file(model, file, f"{model.name.rpartition('/')[2]}{part}", progress)
        blobs = {file.name: _blob(model, file) for file in model.files}
        return cache.register(model.repo, model.revision, model.commit, blobs)


def _pull_file(model: RemoteModel, file: RemoteFile, name: str, progress: Progress) -> None:
    if _blob(model, file).exists():
        return
    if file.bytes > hub.max_http_bytes():
        raise HubError(
            f"{file.name} has {size_text(file.bytes)}, and the hub sends files that large to its own client only; "
            f"run `hf download {model.repo} {file.name}`, then this again"
        )
    partial = _partial(model, file)
    partial.parent.mkdir(parents=True, exist_ok=True)
    with _locked(model, file, progress):
        if _blob(model, file).exists():
            return
        if _n_bytes(partial) > file.bytes:
            partial.unlink()
        progress.start(name, file.bytes, _n_bytes(partial))
        _fetch(model, file, partial, progress)
        progress.check(name, file.bytes)
        _check(file, partial, progress)
        progress.checked(name)
        partial.replace(_blob(model, file))


def _fetch(model: RemoteModel, file: RemoteFile, partial: Path, progress: Progress) -> None:
    """Append to `partial` until it has all bytes."""
    attempt = 0
    while (done := _n_bytes(partial)) < file.bytes:
        try:
            with hub.stream(model, file, done) as (begin, pieces), partial.open("ab") as out:
                out.truncate(begin)
                progress.advance(begin - done)
                for piece in pieces:
                    out.write(piece)
                    progress.advance(len(piece))
            if _n_bytes(partial) == done:
                raise HubError(f"{hub.endpoint()} sent nothing; try again later", 1.0)
        except HubError as error:
            if _n_bytes(partial) > done:
                attempt = 0
            if attempt == _DOWNLOAD_RETRIES:
                raise HubError(f"{error} (the next pull goes on at {size_text(done)})") from error
            _wait(error, attempt, progress)
            attempt += 1


def _check(file: RemoteFile, partial: Path, progress: Progress) -> None:
    """Compare size and SHA-256 with what the hub says; a file that differs is deleted."""
    wrong_size = _n_bytes(partial) != file.bytes
    if wrong_size or (file.sha256 and _sha256(partial, progress) != file.sha256):
        partial.unlink()
        raise HubError(f"{file.name} came damaged (its SHA-256 or size is wrong) and was deleted; fetch it again")


def _sha256(path: Path, progress: Progress) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as content:
        while piece := content.read(_HASH_BYTES):
            digest.update(piece)
            progress.advance(len(piece))
    return digest.hexdigest()


def _wait(error: HubError, attempt: int, progress: Progress) -> None:
    """Sleep before the next attempt, or raise the error if no attempt can help."""
    if error.wait_s is None:
        raise error
    wait_s = min(error.wait_s * 2**attempt, max(error.wait_s, _MAX_WAIT_S))
    progress.note(f"{str(error).partition(';')[0]}; trying again in {wait_s:.0f} s")
    time.sleep(wait_s)


@contextmanager
def _locked(model: RemoteModel, file: RemoteFile, progress: Progress) -> Iterator[None]:
    path = hub.cache_dir() / ".locks" / cache.folder(model.repo).name / f"{file.blob}.lock"
    with ExitStack() as stack:
        try:
            stack.enter_context(hub.lock(path, timeout_s=1))
        except TimeoutError:
            progress.note(f"another process is fetching {file.name}; waiting for it")
            stack.enter_context(hub.lock(path))
        yield


def _blob(model: RemoteModel, file: RemoteFile) -> Path:
    return cache.folder(model.repo) / "blobs" / file.blob


def _partial(model: RemoteModel, file: RemoteFile) -> Path:
    blob = _blob(model, file)
    return blob.with_name(f"{blob.name}.incomplete")


def _n_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
