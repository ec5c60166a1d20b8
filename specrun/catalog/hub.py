"""Access to the Hugging Face hub through its own client. No other file imports huggingface_hub.

HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE and proxy variables therefore work as in other programs.
Every failure becomes a HubError with a message of one line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from specrun.catalog.entries import catalog
from specrun.catalog.names import HubName, near
from specrun.catalog.safe_names import is_safe_name, is_safe_path
from specrun.catalog.split import models_among, shards, with_quantization
from specrun.errors import HubError
from specrun.redaction import without_secrets
from specrun.visible import one_line

_PIECE_BYTES = 1 << 18
_TEMPORARY = (408, 429, 500, 502, 503, 504)  # HTTP status codes after which the same request may succeed
_WAIT_S = 1.0  # before repeating a request, unless the hub names a longer time
_LONGEST_WAIT_S = 600.0  # a hub that names a longer time is not waited for
_MAX_LISTED = 8  # file names in a message
_SHA256 = re.compile("[0-9a-f]{64}")

Value = TypeVar("Value", str, int)


@dataclass(frozen=True)
class RemoteFile:
    """A file on the hub."""

    name: str
    bytes: int
    blob: str  # name of its blob in the cache
    sha256: str | None  # of the content, in hex; None if the hub does not give it

    def __post_init__(self) -> None:
        if not is_safe_path(self.name) or not is_safe_name(self.blob) or self.bytes < 0:
            raise HubError(f"{address()} lists a file that cannot be stored ({one_line(self.name)[:100]}); not fetched")


@dataclass(frozen=True)
class RemoteModel:
    """A model on the hub. What it names stays inside of the cache's folder for its repository."""

    name: str  # as the user named it
    repo: str
    revision: str  # branch, tag or commit that was looked up
    commit: str  # that `revision` is now
    files: tuple[RemoteFile, ...]  # all shards, in order
    licence: str | None
    architecture: str | None  # None if the hub has not read the GGUF file
    context: int | None  # in tokens; None if the hub has not read the GGUF file

    def __post_init__(self) -> None:
        if not (is_safe_path(self.repo) and is_safe_path(self.revision) and is_safe_name(self.commit)):
            commit = one_line(self.commit)[:100]
            raise HubError(f"{address()} names a commit that cannot be one ({commit}); check HF_ENDPOINT")

    @property
    def bytes(self) -> int:
        """Size of all files together."""
        return sum(file.bytes for file in self.files)


def cache_dir() -> Path:
    """The folder of the Hugging Face cache."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def endpoint() -> str:
    """The hub's address."""
    from huggingface_hub import constants

    return str(constants.ENDPOINT)


def address() -> str:
    """The hub's address as messages show it: without a password."""
    return without_secrets(endpoint())


def is_offline() -> bool:
    """Whether HF_HUB_OFFLINE is set."""
    from huggingface_hub import constants

    return bool(constants.is_offline_mode())


def ask_whether_there(timeout_s: float) -> None:
    """Ask for the headers of the hub's first page, without a token. Raises HubError if nothing answers in time.

    A name that is looked up may take longer than `timeout_s`, because the system's own resolver does that.
    """
    import httpx2
    from huggingface_hub.utils import get_session

    try:
        response = get_session().head(endpoint(), timeout=timeout_s)
    except httpx2.TransportError as error:
        raise HubError(f"no connection to {address()} ({_reason(error) or type(error).__name__})") from error
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
        raise HubError(f"{address()} cannot be asked ({_reason(error)})") from error
    if response.status_code >= 500:
        raise HubError(f"{address()} answers {response.status_code}")


def max_http_bytes() -> int:
    """The largest file that the hub sends by plain HTTP, in bytes."""
    from huggingface_hub import constants

    return int(constants.MAX_HTTP_DOWNLOAD_SIZE)


def look_up(model: HubName) -> RemoteModel:
    """Ask the hub for a model's files, sizes and licence, without downloading anything. Raises HubError.

    If the repository no longer has the pinned revision, the newest is taken; the result's `revision` says so.
    """
    try:
        return _look_up(model)
    except HubError as error:
        if model.revision is None or error.wait_s is not None or is_offline():
            raise
        return _look_up(replace(model, revision=None))


def _look_up(model: HubName) -> RemoteModel:
    from huggingface_hub import HfApi, constants

    with _client_errors_as_hub_errors(model.repo, model.name), _client_understands():
        info = HfApi(endpoint=endpoint()).model_info(
            model.repo, revision=model.revision, files_metadata=True, timeout=constants.HF_HUB_ETAG_TIMEOUT
        )
        siblings = {str(sibling.rfilename): sibling for sibling in info.siblings or []}
        gguf: dict[str, Any] = dict(info.gguf or {})
        licence = _licence(info)
    file = model.file or _chosen(model, list(siblings))
    if file not in siblings:
        raise HubError(f"{model.repo} has no file {file}; {_listed(file, models_among(siblings))}")
    names = shards(file)
    if missing := [name for name in names if name not in siblings]:
        raise HubError(f"{model.repo} lacks {missing[0]}, one of the {len(names)} files of this model; choose another")
    return RemoteModel(
        name=model.name,
        repo=model.repo,
        revision=model.revision or "main",
        commit=str(info.sha),
        files=tuple(_remote_file(model, str(info.sha), siblings[name]) for name in names),
        licence=licence,
        architecture=_of_type(gguf.get("architecture"), str),
        context=_of_type(gguf.get("context_length"), int),
    )


def _of_type(value: Any, kind: type[Value]) -> Value | None:
    return value if isinstance(value, kind) else None


@contextmanager
def stream(model: RemoteModel, file: RemoteFile, offset: int) -> Iterator[tuple[int, Iterator[bytes]]]:
    """Download a file from the byte `offset` on.

    Yields the offset at which the download really begins (0 if the server ignores ranges) and an iterator over pieces
    of at most 256 KiB. Raises HubError, also while the pieces are read.
    """
    from huggingface_hub import constants, hf_hub_url
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

    url = hf_hub_url(model.repo, file.name, revision=model.commit, endpoint=endpoint())
    headers = build_hf_headers() | {"Accept-Encoding": "identity"}
    if offset:
        headers["Range"] = f"bytes={offset}-"
    with (
        _client_errors_as_hub_errors(model.repo, model.name),
        get_session().stream("GET", url, headers=headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT) as response,
    ):
        hf_raise_for_status(response)
        begin = offset if response.status_code == 206 else 0
        yield begin, response.iter_bytes(_PIECE_BYTES)


def lock(path: Path, timeout_s: float | None = None) -> AbstractContextManager[object]:
    """The lock file that the hub's client uses for a blob; a context manager.

    Entering raises TimeoutError if another process holds the lock for longer than `timeout_s` seconds (None: waits).
    """
    from huggingface_hub.utils import WeakFileLock

    path.parent.mkdir(parents=True, exist_ok=True)
    return WeakFileLock(path, timeout=timeout_s)


def delete_cached(repo: str, files: tuple[str, ...]) -> int:
    """Delete these files from the cache, with the blobs that nothing else uses. Returns the number of bytes freed.

    A file that this process may not delete stays, without an error.
    """
    import logging

    from huggingface_hub import scan_cache_dir

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it logs a traceback for every such file
    cached = scan_cache_dir(cache_dir())
    wanted = [
        file
        for cached_repo in cached.repos
        for revision in cached_repo.revisions
        for file in revision.files
        if cached_repo.repo_id == repo and file.file_path.relative_to(revision.snapshot_path).as_posix() in files
    ]
    for file in wanted:  # the client deletes what a link leads to, wherever that lies
        if not file.blob_path.is_relative_to(cache_dir().resolve()):
            raise HubError(f"{file.file_path} leads out of the cache, to {file.blob_path}; delete the link yourself")
    strategy = cached.delete_files(*wanted)
    strategy.execute()
    return int(strategy.expected_freed_size)


@contextmanager
def _client_errors_as_hub_errors(repo: str, name: str) -> Iterator[None]:
    """Turn exceptions of the hub's client inside the `with` block into HubErrors that say what to do."""
    import httpx2
    from huggingface_hub import errors

    try:
        yield
    except errors.OfflineModeIsEnabled as error:
        raise HubError(f"{name} is not in the cache, and HF_HUB_OFFLINE is set; unset it to fetch the model") from error
    except errors.HfHubHTTPError as error:
        raise _response_error(repo, error) from error
    except httpx2.TransportError as error:
        what = "no connection to" if isinstance(error, httpx2.ConnectError) else "lost the connection to"
        reason = _reason(error) or type(error).__name__
        raise HubError(f"{what} {address()} ({reason}); check the network, or HF_ENDPOINT", _WAIT_S) from error
    except (httpx2.HTTPError, errors.HFValidationError, ValueError) as error:
        raise HubError(f"{repo}: {_reason(error)}; check the name, and HF_ENDPOINT") from error


@contextmanager
def _client_understands() -> Iterator[None]:
    """Turn what the client raises over an answer of an unexpected form into a HubError."""
    try:
        yield
    except (AttributeError, KeyError, TypeError) as error:
        raise HubError(f"{address()} answers what is no answer of a hub; check HF_ENDPOINT") from error


def _reason(error: Exception) -> str:
    """An error of the client in one line: it may quote addresses, with what gives access to them."""
    return without_secrets(" ".join(str(error).split()))


def _response_error(repo: str, error: Any) -> HubError:
    """The HubError for an HTTP response with an error status."""
    from huggingface_hub import errors, get_token

    status = error.response.status_code
    page = f"{address()}/{repo}"
    if isinstance(error, errors.GatedRepoError):
        then = "wait for its owners to grant access" if get_token() else "set HF_TOKEN (or run `hf auth login`)"
        return HubError(f"{repo} is gated: open {page}, accept its terms, then {then} and run this again")
    if isinstance(error, errors.RevisionNotFoundError):
        return HubError(f"{repo} has no such revision; see {page}/commits/main")
    if isinstance(error, errors.RepositoryNotFoundError):
        close = near(repo, sorted({entry.repo for entry in catalog().values()} - {repo}))
        hint = f"did you mean {' or '.join(close)}?" if close else "check the name; a private one needs HF_TOKEN"
        return HubError(f"there is no repository {repo} on {address()}; {hint}")
    if isinstance(error, errors.EntryNotFoundError):
        return HubError(f"{repo} no longer has this file; see {page}/tree/main")
    if status == 401:
        return HubError(f"{address()} does not know this token; check HF_TOKEN, or run `hf auth login`")
    if status == 403:
        return HubError(f"{address()} refuses access to {repo}; open {page}, and check what the token may read")
    if status in _TEMPORARY:
        what = "too many requests" if status == 429 else "it has a problem"
        return HubError(f"{address()} answers {status} ({what}); try again later", _retry_after_s(error))
    return HubError(f"{address()} answers {status} for {repo}; see {page}")


def _retry_after_s(error: Any) -> float | None:
    """How long to wait; None if the hub names a time for which nobody would."""
    try:
        wait_s = float(error.response.headers.get("Retry-After", ""))
    except ValueError:
        return _WAIT_S
    return max(wait_s, _WAIT_S) if wait_s <= _LONGEST_WAIT_S else None


def _chosen(model: HubName, files: list[str]) -> str:
    """The one file with the wanted quantization. Raises HubError if there are none or several."""
    candidates = with_quantization(files, model.quantization)
    if len(candidates) == 1:
        return candidates[0]
    if not candidates:
        what = f"no {model.quantization} model" if model.quantization else "no GGUF model"
        raise HubError(f"{model.repo} has {what}; {_listed(model.quantization or '', models_among(files))}")
    raise HubError(f"{model.name} can be {_named(candidates)}; name one: {model.repo}/{candidates[0]}")


def _listed(name: str, files: list[str]) -> str:
    """Advice for a name that is not among `files`."""
    if not files:
        return "look for a repository with GGUF in its name"
    close = near(name, files)
    return f"did you mean {' or '.join(close)}?" if close else f"it has {_named(files)}"


def _named(files: list[str]) -> str:
    return ", ".join(files[:_MAX_LISTED]) + (", ..." if len(files) > _MAX_LISTED else "")


def _remote_file(model: HubName, commit: str, sibling: Any) -> RemoteFile:
    if sibling.size is None:  # some mirrors list only names
        return _requested_remote_file(model, commit, sibling.rfilename)
    with _client_errors_as_hub_errors(model.repo, model.name), _client_understands():
        sha256 = str(sibling.lfs.sha256) if sibling.lfs else None
        return RemoteFile(str(sibling.rfilename), int(sibling.size), sha256 or str(sibling.blob_id), sha256)


def _requested_remote_file(model: HubName, commit: str, file: str) -> RemoteFile:
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    with _client_errors_as_hub_errors(model.repo, model.name):
        url = hf_hub_url(model.repo, file, revision=commit, endpoint=endpoint())
        metadata = get_hf_file_metadata(url, token=None, endpoint=endpoint())
    if metadata.size is None or metadata.etag is None:
        raise HubError(f"{address()} does not say how large {file} is; check HF_ENDPOINT")
    sha256 = metadata.etag if _SHA256.fullmatch(metadata.etag) else None
    return RemoteFile(file, metadata.size, metadata.etag, sha256)


def _licence(info: Any) -> str | None:
    tags = [tag.removeprefix("license:") for tag in info.tags or [] if tag.startswith("license:")]
    name = info.card_data.get("license_name") if info.card_data else None
    return str(name) if name else (tags[0] if tags else None)
