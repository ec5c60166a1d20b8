"""What the client does: ask the hub, send files, lock and delete what is in the cache."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from specrun.catalog.hub import RefusedError, address, cache_dir, client_errors_as_hub_errors, endpoint, reason_of
from specrun.catalog.hub.look_up import RemoteFile, RemoteModel
from specrun.errors import HubError

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
