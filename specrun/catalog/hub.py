"""The Hugging Face hub, through its own client: the only file that imports huggingface_hub.

HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE and proxies mean what they mean to every other program.
Whatever goes wrong becomes a HubError of one line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specrun.catalog.entries import catalog
from specrun.catalog.names import HubName, near
from specrun.catalog.split import models_among, shards, with_quantization
from specrun.errors import HubError

_PIECE_BYTES = 1 << 18
_TEMPORARY = (408, 429, 500, 502, 503, 504)
_WAIT_S = 1.0
_MAX_LISTED = 8
_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class RemoteFile:
    """A file on the hub. blob: its name in the cache; sha256: of its content, where the hub gives it."""

    name: str
    bytes: int
    blob: str
    sha256: str | None


@dataclass(frozen=True)
class RemoteModel:
    """A model on the hub, all its files in order. revision: as asked for; commit: what that is now.

    architecture and context: as the hub read them from the GGUF file, None where it did not.
    """

    name: str
    repo: str
    revision: str
    commit: str
    files: tuple[RemoteFile, ...]
    licence: str | None
    architecture: str | None
    context: int | None

    @property
    def bytes(self) -> int:
        """Of all files together."""
        return sum(file.bytes for file in self.files)


def cache_dir() -> Path:
    """The Hugging Face cache."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def endpoint() -> str:
    """The hub's address."""
    from huggingface_hub import constants

    return str(constants.ENDPOINT)


def is_offline() -> bool:
    """Whether HF_HUB_OFFLINE is set."""
    from huggingface_hub import constants

    return bool(constants.is_offline_mode())


def max_http_bytes() -> int:
    """The largest file that the hub sends by plain HTTP, in bytes."""
    from huggingface_hub import constants

    return int(constants.MAX_HTTP_DOWNLOAD_SIZE)


def look_up(model: HubName) -> RemoteModel:
    """Ask the hub for a model's files, sizes and licence; downloads nothing. Raises HubError.

    A pinned revision that the repository no longer has gives way to the newest, which `revision` then tells.
    """
    try:
        return _look_up(model)
    except HubError as error:
        if model.revision is None or error.wait_s is not None or is_offline():
            raise
        return _look_up(replace(model, revision=None))


def _look_up(model: HubName) -> RemoteModel:
    from huggingface_hub import HfApi, constants

    with _told_in_words(model.repo, model.name):
        info = HfApi(endpoint=endpoint()).model_info(
            model.repo, revision=model.revision, files_metadata=True, timeout=constants.HF_HUB_ETAG_TIMEOUT
        )
    siblings = {sibling.rfilename: sibling for sibling in info.siblings or []}
    file = model.file or _chosen(model, list(siblings))
    if file not in siblings:
        raise HubError(f"{model.repo} has no file {file}; {_listed(file, models_among(siblings))}")
    names = shards(file)
    if missing := [name for name in names if name not in siblings]:
        raise HubError(f"{model.repo} lacks {missing[0]}, one of the {len(names)} files of this model; choose another")
    gguf: dict[str, Any] = info.gguf or {}
    return RemoteModel(
        name=model.name,
        repo=model.repo,
        revision=model.revision or "main",
        commit=str(info.sha),
        files=tuple(_remote_file(model, str(info.sha), siblings[name]) for name in names),
        licence=_licence(info),
        architecture=gguf.get("architecture"),
        context=gguf.get("context_length"),
    )


@contextmanager
def stream(model: RemoteModel, file: RemoteFile, offset: int) -> Iterator[tuple[int, Iterator[bytes]]]:
    """The bytes of a file from `offset` on, as the offset they really begin at (0 where a server ignores ranges) and
    pieces of at most 256 KiB. Raises HubError, also while they are read.
    """
    from huggingface_hub import constants, hf_hub_url
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

    url = hf_hub_url(model.repo, file.name, revision=model.commit, endpoint=endpoint())
    headers = build_hf_headers() | {"Accept-Encoding": "identity"}
    if offset:
        headers["Range"] = f"bytes={offset}-"
    with (
        _told_in_words(model.repo, model.name),
        get_session().stream("GET", url, headers=headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT) as response,
    ):
        hf_raise_for_status(response)
        begin = offset if response.status_code == 206 else 0
        yield begin, response.iter_bytes(_PIECE_BYTES)


def lock(path: Path, timeout_s: float | None = None) -> AbstractContextManager[object]:
    """The lock that the hub's client takes on a blob. Raises TimeoutError if another process holds it for longer."""
    from huggingface_hub.utils import WeakFileLock

    path.parent.mkdir(parents=True, exist_ok=True)
    return WeakFileLock(path, timeout=timeout_s)


def delete_cached(repo: str, files: tuple[str, ...]) -> int:
    """Delete these files from the cache, and blobs that nothing else uses. Returns the bytes that this frees.

    What may not be deleted is left without an error.
    """
    import logging

    from huggingface_hub import scan_cache_dir

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it prints tracebacks of what it may not delete
    cached = scan_cache_dir(cache_dir())
    strategy = cached.delete_files(
        *(
            file
            for found in cached.repos
            for revision in found.revisions
            for file in revision.files
            if found.repo_id == repo and file.file_path.relative_to(revision.snapshot_path).as_posix() in files
        )
    )
    strategy.execute()
    return int(strategy.expected_freed_size)


@contextmanager
def _told_in_words(repo: str, name: str) -> Iterator[None]:
    """What the hub's client raises, as a HubError."""
    import httpx2
    from huggingface_hub import errors

    try:
        yield
    except errors.OfflineModeIsEnabled as error:
        raise HubError(f"{name} is not in the cache, and HF_HUB_OFFLINE is set; unset it to fetch the model") from error
    except errors.HfHubHTTPError as error:
        raise _refusal(repo, error) from error
    except httpx2.TransportError as error:
        what = "no connection to" if isinstance(error, httpx2.ConnectError) else "lost the connection to"
        message = f"{what} {endpoint()} ({str(error) or type(error).__name__}); check the network, or HF_ENDPOINT"
        raise HubError(" ".join(message.split()), _WAIT_S) from error
    except (httpx2.HTTPError, errors.HFValidationError, ValueError) as error:
        raise HubError(f"{repo}: {' '.join(str(error).split())}; check the name, and HF_ENDPOINT") from error


def _refusal(repo: str, error: Any) -> HubError:
    from huggingface_hub import errors, get_token

    status = error.response.status_code
    page = f"{endpoint()}/{repo}"
    if isinstance(error, errors.GatedRepoError):
        then = "wait for its owners to grant access" if get_token() else "set HF_TOKEN (or run `hf auth login`)"
        return HubError(f"{repo} is gated: open {page}, accept its terms, then {then} and run this again")
    if isinstance(error, errors.RevisionNotFoundError):
        return HubError(f"{repo} has no such revision; see {page}/commits/main")
    if isinstance(error, errors.RepositoryNotFoundError):
        close = near(repo, sorted({entry.repo for entry in catalog().values()} - {repo}))
        hint = f"did you mean {' or '.join(close)}?" if close else "check the name; a private one needs HF_TOKEN"
        return HubError(f"there is no repository {repo} on {endpoint()}; {hint}")
    if isinstance(error, errors.EntryNotFoundError):
        return HubError(f"{repo} no longer has this file; see {page}/tree/main")
    if status == 401:
        return HubError(f"{endpoint()} does not know this token; check HF_TOKEN, or run `hf auth login`")
    if status == 403:
        return HubError(f"{endpoint()} refuses access to {repo}; open {page}, and check what the token may read")
    if status in _TEMPORARY:
        what = "too many requests" if status == 429 else "it has a problem"
        return HubError(f"{endpoint()} answers {status} ({what}); try again later", _retry_after_s(error))
    return HubError(f"{endpoint()} answers {status} for {repo}; see {page}")


def _retry_after_s(error: Any) -> float:
    try:
        return max(float(error.response.headers.get("Retry-After", "")), _WAIT_S)
    except ValueError:
        return _WAIT_S


def _chosen(model: HubName, files: list[str]) -> str:
    """The one file that a quantization means."""
    found = with_quantization(files, model.quantization)
    if len(found) == 1:
        return found[0]
    if not found:
        what = f"no {model.quantization} model" if model.quantization else "no GGUF model"
        raise HubError(f"{model.repo} has {what}; {_listed(model.quantization or '', models_among(files))}")
    raise HubError(f"{model.name} can be {_named(found)}; name one: {model.repo}/{found[0]}")


def _listed(name: str, files: list[str]) -> str:
    if not files:
        return "look for a repository with GGUF in its name"
    close = near(name, files)
    return f"did you mean {' or '.join(close)}?" if close else f"it has {_named(files)}"


def _named(files: list[str]) -> str:
    return ", ".join(files[:_MAX_LISTED]) + (", ..." if len(files) > _MAX_LISTED else "")


def _remote_file(model: HubName, commit: str, sibling: Any) -> RemoteFile:
    if sibling.size is None:  # a mirror that lists names only
        return _asked_remote_file(model, commit, sibling.rfilename)
    sha256 = sibling.lfs.sha256 if sibling.lfs else None
    return RemoteFile(sibling.rfilename, int(sibling.size), str(sha256 or sibling.blob_id), sha256)


def _asked_remote_file(model: HubName, commit: str, file: str) -> RemoteFile:
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    with _told_in_words(model.repo, model.name):
        url = hf_hub_url(model.repo, file, revision=commit, endpoint=endpoint())
        found = get_hf_file_metadata(url, token=None, endpoint=endpoint())
    if found.size is None or found.etag is None:
        raise HubError(f"{endpoint()} does not say how large {file} is; check HF_ENDPOINT")
    return RemoteFile(file, found.size, found.etag, found.etag if _SHA256.fullmatch(found.etag) else None)


def _licence(info: Any) -> str | None:
    tags = [tag.removeprefix("license:") for tag in info.tags or [] if tag.startswith("license:")]
    name = info.card_data.get("license_name") if info.card_data else None
    return str(name) if name else (tags[0] if tags else None)
