"""Downloads a model into the Hugging Face cache. A model is visible there only once it is complete and verified.

The hub's own client (2.4) discards an interrupted download, which costs too much with files of many gigabytes.
Therefore specrun reads through the client's session but writes its own partial file, which the next download continues
(docs/adr/0004-resumable-downloads.md).
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from specrun.catalog import cache
from specrun.catalog.hub import RefusedError, address, cache_dir, client, max_http_bytes
from specrun.catalog.hub.client import RemoteFile, RemoteModel
from specrun.catalog.hub.client import look_up as look_up_once
from specrun.catalog.names import HubName
from specrun.display_text import size_text
from specrun.errors import HubError
from specrun.locations import existing_folder, file_bytes

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
            remote = look_up_once(model)
            break
        except HubError as error:
            _wait(error, attempt, progress)
    else:
        remote = look_up_once(model)
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
        raise HubError(cache.disk_full(f"{size_text(needed)} are needed and {size_text(free)} are free"))
    return free


def pull(model: RemoteModel, progress: Progress) -> Path:
    """Download what is missing of a model, verify it, add it to the cache. Returns its first file. Raises HubError."""
    with cache.disk_errors_as_hub_errors():
        for number, file in enumerate(model.files, 1):
            part = f" {number}/{len(model.files)}" if len(model.files) > 1 else ""
            _pull_file(model, file, f"{model.name.rpartition('/')[2]}{part}", progress)
        blobs = {file.name: _blob(model, file) for file in model.files}
        return cache.register(model.repo, model.revision, model.commit, blobs)


def _pull_file(model: RemoteModel, file: RemoteFile, name: str, progress: Progress) -> None:
    if _blob(model, file).exists():
        return
    if file.bytes > max_http_bytes():
        why = f"{file.name} has {size_text(file.bytes)}, and the hub sends files of this size only to its own client"
        raise HubError(f"{why}; run `hf download {model.repo} {file.name}`, then this again")
    unfinished = _partial(model, file)
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    lock = cache_dir() / ".locks" / cache.folder(model.repo).name / f"{file.blob}.lock"
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
    return cache.folder(model.repo) / "blobs" / file.blob


def _partial(model: RemoteModel, file: RemoteFile) -> Path:
    return cache.folder(model.repo) / "blobs" / f"{file.blob}.incomplete"
