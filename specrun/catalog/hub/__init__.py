"""Access to the Hugging Face hub through its own client. No other room imports huggingface_hub.

HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE and proxy variables therefore work as in other programs.
Every failure becomes a HubError with a message of one line.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from specrun.catalog.entries import Entry, catalog
from specrun.display_text import near, without_secrets
from specrun.errors import HubError, NoHubError

_TEMPORARY = (408, 429, 500, 502, 503, 504)  # HTTP status codes after which the same request may succeed
_NO_SUCH_RANGE = 416
_WAIT_S = 1.0  # before repeating a request, unless the hub names a longer time
_LONGEST_WAIT_S = 600.0  # a hub that names a longer time is not waited for


@dataclass(frozen=True)
class HubName:
    """A name that means a model on the hub."""

    name: str  # as the user wrote it
    repo: str  # ORG/NAME
    revision: str | None = None  # the commit that the catalog pins; None for the newest
    file: str | None = None  # first file of the model; None for the file with `quantization`
    quantization: str | None = None  # that the user asked for
    entry: Entry | None = None  # the catalog's entry, if the name is an alias or names the entry's repository


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


def max_http_bytes() -> int:
    """The largest file that the hub sends by plain HTTP, in bytes."""
    from huggingface_hub import constants

    return int(constants.MAX_HTTP_DOWNLOAD_SIZE)


class RefusedError(HubError):
    """The server to which the hub sends downloads refuses a request that the hub allowed: its address is no longer
    valid, or `by_range`, it has no such part of the file. The hub's next answer has a new address.
    """

    def __init__(self, message: str, by_range: bool) -> None:
        super().__init__(message, _WAIT_S)
        self.by_range = by_range


@contextmanager
def client_errors_as_hub_errors(repo: str, name: str) -> Iterator[None]:
    """Turn exceptions of the hub's client inside the `with` block into HubErrors that say what to do."""
    import httpx2
    from huggingface_hub import errors

    try:
        yield
    except errors.OfflineModeIsEnabled as error:
        why = f"{name} is not in the cache, and HF_HUB_OFFLINE is set; unset it to fetch the model"
        raise NoHubError(why) from error
    except errors.HfHubHTTPError as error:
        raise _response_error(repo, error) from error
    except httpx2.TransportError as error:
        raise _connection_error(error, isinstance(error, (httpx2.ConnectError, httpx2.ConnectTimeout))) from error
    except UnicodeError as error:  # in the headers, of which only the token is not ours
        why = "the token of HF_TOKEN, or of `hf auth login`, has characters that no token has; copy it again"
        raise HubError(why) from error
    except (httpx2.HTTPError, errors.HFValidationError, ValueError) as error:
        raise HubError(f"{repo}: {reason_of(error)}; check the name, and HF_ENDPOINT") from error
    except (AttributeError, KeyError, TypeError) as error:  # which the client raises for an answer of another form
        raise HubError(f"{address()} answers what is no answer of a hub; check HF_ENDPOINT") from error


def _connection_error(error: Any, at_once: bool) -> HubError:
    """The HubError for a connection that was lost, or that `at_once` could not be made. The hub sends downloads to
    another host, which a firewall may not let through.
    """
    reason, host = reason_of(error) or type(error).__name__, error.request.url.host
    is_hub_s = host == urlsplit(endpoint()).hostname
    where = address() if is_hub_s else f"{host}, to which {address()} sends downloads"
    if not at_once:
        return HubError(f"lost the connection to {where} ({reason}); check the network", _WAIT_S)
    if is_hub_s:
        return NoHubError(f"no connection to {where} ({reason}); check the network, or HF_ENDPOINT", _WAIT_S)
    return HubError(f"no connection to {where} ({reason}); check the network, or the proxy", _WAIT_S)


def reason_of(error: Exception) -> str:
    """An error of the client in one line. It may quote addresses with passwords or tokens, which are taken out."""
    return without_secrets(" ".join(str(error).split()))


def _response_error(repo: str, error: Any) -> HubError:
    from huggingface_hub import errors, get_token

    status, where = error.response.status_code, error.response.url.host
    page = f"{address()}/{repo}"
    if status == _NO_SUCH_RANGE:
        return RefusedError(f"{where} does not continue the download (it answers {status}); try again", by_range=True)
    is_hub_s = "X-Error-Code" in error.response.headers or not error.response.history
    if not is_hub_s and status // 100 == 4 and status not in _TEMPORARY:
        why = f"{where}, to which {address()} sends downloads, answers {status}; try again, or check the proxy"
        return RefusedError(why, by_range=False)
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
    """Seconds to wait before the next attempt; None if the hub names too long a time."""
    try:
        wait_s = float(error.response.headers.get("Retry-After", ""))
    except ValueError:
        return _WAIT_S
    return max(wait_s, _WAIT_S) if wait_s <= _LONGEST_WAIT_S else None
