"""Who may ask: the key, and pages in a browser that only pretend to be from here.

A page of any site can let the browser send requests to 127.0.0.1, and with a name that its owner lets point there (DNS
rebinding) read the answers too. So on a loopback address the Host header must be a name of this machine, and pages of
other sites are refused everywhere, unless they are allowed by name. Pages that a program of the same machine has made
may ask, and the browser is told (CORS) that they may read the answers.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from specrun.serving.api_error import FORBIDDEN, UNAUTHORIZED, ApiError, error_response

ANY_ORIGIN = "*"
# Whether the server is alive, and the page, which asks for the key. They say nothing about the model.
_OPEN = frozenset({"/health", "/v1/health", "/"})
_PAGE = "/web/"  # below which its files are
# Of pages within programs: Electron's, Tauri's, and views of VS Code's extensions. No site can have such an origin.
_WEB = frozenset({"http", "https"})
_PROGRAMS = frozenset({"app", "tauri", "vscode-webview"})


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

    def may_read(self, origin: str) -> bool:
        """Whether pages of this origin may read answers: they are allowed by name, or a program here has made them."""
        if ANY_ORIGIN in self.origins or origin in self.origins:
            return True
        scheme, _, host = _parts(origin)
        return scheme in _PROGRAMS or (scheme in _WEB and is_loopback(host))


class Cors(CORSMiddleware):
    """Tells browsers which pages may read the answers, also those that the guard gives."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        super().__init__(app, allow_methods=["*"], allow_headers=["*"])
        self._access = access

    def is_allowed_origin(self, origin: str) -> bool:
        return self._access.may_read(origin)


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
        if self._access.only_local and not is_loopback(_parts(f"//{host}")[2]):
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
        """Whether a page may ask: it is this server's, it may read answers, or it is no site's.

        The last are extensions of the browser, which itself decides whether they may read answers.
        """
        if self._access.may_read(origin):
            return True
        scheme, netloc, _ = _parts(origin)
        if scheme in _WEB:
            return netloc == host
        return bool(scheme)  # "null" has none, and any site's page can give itself this origin


def _parts(address: str) -> tuple[str, str, str]:
    """Scheme, host with port, and host of an address; empty where it is none."""
    try:
        parts = urlsplit(address)
        return parts.scheme, parts.netloc, parts.hostname or ""
    except ValueError:
        return "", "", ""


def _has_key(headers: Headers, key: str) -> bool:
    """Whether one of the two headers has the key: programs fill the one that they do not use with anything."""
    authorization = headers.get("authorization", "")
    scheme, _, token = authorization.partition(" ")
    given = (token.strip() if scheme.lower() == "bearer" else authorization, headers.get("x-api-key", ""))
    # As they came: headers are read as latin-1, and what is not UTF-8 on the command line as lone surrogates.
    wanted = key.encode(errors="surrogateescape")
    return any(hmac.compare_digest(text.encode("latin-1"), wanted) for text in given)
