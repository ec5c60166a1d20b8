"""What the hub's client does: look a model up, with files, sizes and licence; send, lock and delete files."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specrun.catalog.file_names import (
    ambiguous,
    is_safe_name,
    is_safe_path,
    listed,
    models_among,
    shards,
    targets_among,
    with_quantization,
)
from specrun.catalog.hub import (
    HubName,
    RefusedError,
    address,
    cache_dir,
    client_errors_as_hub_errors,
    endpoint,
    reason_of,
)
from specrun.display_text import near, one_line
from specrun.errors import HubError, NoHubError

_CONNECTING_S = 4.0  # a network that is there connects in a tenth of this
_UNREACHABLE_S = 60.0  # in which a hub that could not be connected to is not tried again
_unreachable: dict[str, tuple[float, str]] = {}  # until when (`time.monotonic()`), and why, by the hub's address
_SHA256 = re.compile("[0-9a-f]{64}")


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
    """A model on the hub. Its names cannot lead out of the cache's folder for its repository."""

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


def look_up(model: HubName) -> RemoteModel:
    """Ask the hub for a model's files. Where the pinned revision is gone, the newest is taken. Raises HubError.

    A hub that cannot be connected to is tried for some seconds, and not again for a minute.
    """
    until, why = _unreachable.get(endpoint(), (0.0, ""))
    if time.monotonic() < until:
        raise NoHubError(why)
    try:
        return _look_up(model)
    except NoHubError as error:
        if error.wait_s is None:  # by HF_HUB_OFFLINE, which is known at once
            raise
        _unreachable[endpoint()] = time.monotonic() + _UNREACHABLE_S, str(error)
        raise NoHubError(str(error)) from error
    except HubError as error:
        if model.revision is None or error.wait_s is not None:
            raise
        return _look_up(replace(model, revision=None))


def _look_up(model: HubName) -> RemoteModel:
    import httpx2
    from huggingface_hub import HfApi, constants

    timeout: Any = httpx2.Timeout(constants.HF_HUB_ETAG_TIMEOUT, connect=_CONNECTING_S)
    with client_errors_as_hub_errors(model.repo, model.name):
        info = HfApi(endpoint=endpoint()).model_info(
            model.repo, revision=model.revision, files_metadata=True, timeout=timeout
        )
        siblings = {str(sibling.rfilename): sibling for sibling in info.siblings or []}
        gguf: dict[str, Any] = dict(info.gguf or {})
        tags = [tag.removeprefix("license:") for tag in info.tags or [] if tag.startswith("license:")]
        named = info.card_data.get("license_name") if info.card_data else None
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
        licence=str(named) if named else next(iter(tags), None),
        architecture=architecture if isinstance(architecture := gguf.get("architecture"), str) else None,
        context=context if isinstance(context := gguf.get("context_length"), int) else None,
    )


def _chosen(model: HubName, files: list[str]) -> str:
    """The only file with the wanted quantization. Raises HubError if there is no such file, or several."""
    candidates = with_quantization(files, model.repo, model.quantization)
    if not candidates:
        what = f"no {model.quantization} model" if model.quantization else "no GGUF model"
        targets, all_models = targets_among(files, model.repo), models_among(files)
        if all_models and not targets:
            advice = f"heads and adapters are named by their files, as {model.repo}/{all_models[0]}"
        else:
            advice = _listed(model.quantization or "", targets)
        raise HubError(f"{model.repo} has {what}; {advice}")
    if len(candidates) > 1:
        raise HubError(ambiguous(model.name, model.repo, candidates))
    return candidates[0]


def _listed(name: str, files: list[str]) -> str:
    """Advice for a name that is not among `files`."""
    if not files:
        return "look for a repository with GGUF in its name"
    close = near(name, files)
    return f"did you mean {' or '.join(close)}?" if close else f"it has {listed(files)}"


def _remote_file(model: HubName, commit: str, sibling: Any) -> RemoteFile:
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    file = str(sibling.rfilename)
    if sibling.size is not None:
        with client_errors_as_hub_errors(model.repo, model.name):
            sha256 = str(sibling.lfs.sha256) if sibling.lfs else None
            return RemoteFile(file, int(sibling.size), sha256 or str(sibling.blob_id), sha256)
    with client_errors_as_hub_errors(model.repo, model.name):  # some mirrors list only names
        url = hf_hub_url(model.repo, file, revision=commit, endpoint=endpoint())
        metadata = get_hf_file_metadata(url, token=None, endpoint=endpoint())
    if metadata.size is None or metadata.etag is None:
        raise HubError(f"{address()} does not say how large {file} is; check HF_ENDPOINT")
    sha256 = metadata.etag if _SHA256.fullmatch(metadata.etag) else None
    return RemoteFile(file, metadata.size, metadata.etag, sha256)


_PIECE_BYTES = 1 << 18
_PART = 206  # HTTP's status for a part of a file


def ask_whether_there(timeout_s: float) -> None:
    """Ask for the headers of the hub's first page, without a token. Raises HubError if nothing answers in time."""
    import httpx2
    from huggingface_hub.utils import get_session

    try:
        response = get_session().head(endpoint(), timeout=timeout_s)
    except httpx2.TransportError as error:
        raise HubError(f"no connection to {address()} ({reason_of(error) or type(error).__name__})") from error
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
        raise HubError(f"{address()} cannot be asked ({reason_of(error)})") from error
    if response.status_code >= 500:
        raise HubError(f"{address()} answers {response.status_code}")


@contextmanager
def stream(model: RemoteModel, file: RemoteFile, offset: int) -> Iterator[tuple[int, Iterator[bytes]]]:
    """Download a file from `offset` on: yields where it really begins (0 without ranges), and its pieces.

    Raises HubError, and RefusedError where the same request or one from 0 on may succeed.
    """
    from huggingface_hub import constants, hf_hub_url
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

    url = hf_hub_url(model.repo, file.name, revision=model.commit, endpoint=endpoint())
    headers = build_hf_headers() | {"Accept-Encoding": "identity"} | ({"Range": f"bytes={offset}-"} if offset else {})
    with (
        client_errors_as_hub_errors(model.repo, model.name),
        get_session().stream("GET", url, headers=headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT) as response,
    ):
        hf_raise_for_status(response)
        begin = _begin(response.headers.get("Content-Range"), offset, response.status_code)
        length = "" if "Content-Encoding" in response.headers else response.headers.get("Content-Length", "")
        if begin is None and length.isdecimal() and int(length) != file.bytes:
            what = f"{response.url.host} sends {length} bytes instead of {file.name}, which has {file.bytes}"
            raise HubError(f"{what}; check the proxy")
        yield begin or 0, response.iter_bytes(_PIECE_BYTES)


def _begin(content_range: str | None, offset: int, status: int) -> int | None:
    """Where the bytes of an answer begin, by its header `bytes BEGIN-END/ALL`; None for an answer with all bytes.

    The status alone does not tell: some hubs answer 200 with a part, and caches begin at a block. Raises RefusedError
    for what begins after `offset`.
    """
    if not (found := re.match(r"bytes (\d+)-", content_range or "")):
        return offset if status == _PART else None
    if int(found[1]) > offset:
        raise RefusedError(f"{address()} continues at {found[1]} and not at {offset}; try again", by_range=True)
    return int(found[1])


@contextmanager
def locked(path: Path, wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file that the hub's client uses for a blob. wait: is called where another process holds it."""
    from huggingface_hub.utils import WeakFileLock

    path.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(WeakFileLock(path, timeout=1))
        except TimeoutError:
            wait()
            stack.enter_context(WeakFileLock(path))
        yield


def delete_cached(repo: str, files: tuple[str, ...]) -> int:
    """Delete files from the cache, with blobs that nothing else uses, as far as allowed. Returns the bytes freed."""
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
