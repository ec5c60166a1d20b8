"""Who may ask: the key, and pages in a browser that only pretend to be from here.

A page of any site can let the browser send requests to 127.0.0.1, and with a name that its owner lets point there (DNS
rebinding) read the answers too. So on a loopback address the Host header must be a name of this machine, and pages of
other sites are refused everywhere, unless they are allowed by name.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from specrun.serving.api_error import FORBIDDEN, UNAUTHORIZED, ApiError, error_response

ANY_ORIGIN = "*"
# Whether the server is alive, and the page, which asks for the key. They say nothing about the model.
_OPEN = frozenset({"/health", "/v1/health", "/"})
_PAGE = "/web/"  # below which its files are


def is_loopback(host: str) -> bool:
    """Whether a name or an address is only for programs on this machine."""
    name = host.strip("[]").rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class Access:
    """Who may ask.

    key: what clients must send; None for no key. only_local: whether the server listens on a loopback address.
    origins: pages of other sites that may ask.
    """

    key: str | None = None
    only_local: bool = True
    origins: Sequence[str] = ()


class Guard:
    """Passes on what may be answered, and answers the rest with an error."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        error = self._refusal(scope["path"], Headers(scope=scope))
        answer = error_response(scope["path"], error) if error else self._app
        await answer(scope, receive, send)

    def _refusal(self, path: str, headers: Headers) -> ApiError | None:
        host = headers.get("host", "")
        if self._access.only_local and not is_loopback(urlsplit(f"//{host}").hostname or ""):
            return ApiError("this server listens on this machine only; ask for it as 127.0.0.1 or localhost", FORBIDDEN)
        origin = headers.get("origin")
        if origin is not None and not self._may_ask(origin, host):
            return ApiError(f"pages of {origin} may not ask this server; --cors-origin allows them", FORBIDDEN)
        is_open = path in _OPEN or path.startswith(_PAGE)
        if self._access.key and not is_open and not _has_key(headers, self._access.key):
            return ApiError(
                "the API key is missing or wrong; send it as `Authorization: Bearer KEY` or `x-api-key: KEY`",
                UNAUTHORIZED,
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return None

    def _may_ask(self, origin: str, host: str) -> bool:
        """Whether a page may ask: it is this server's, it is allowed, or it is a program's and not from the web."""
        if ANY_ORIGIN in self._access.origins or origin in self._access.origins:
            return True
        page = urlsplit(origin)
        if page.scheme in ("http", "https"):
            return page.netloc == host or is_loopback(page.hostname or "")
        return origin != "null"  # any site's page can give itself this origin


def _has_key(headers: Headers, key: str) -> bool:
    given = headers.get("authorization", "").removeprefix("Bearer ") or headers.get("x-api-key", "")
    # As they came: headers are read as latin-1, and what is not UTF-8 on the command line as lone surrogates.
    return hmac.compare_digest(given.encode("latin-1"), key.encode(errors="surrogateescape"))
