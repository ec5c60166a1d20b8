"""The HTTP server: who may ask, and a thread of its own, on a socket that is opened before anything else is done.

A page of any site can let the browser send requests to 127.0.0.1, and with a name that its owner lets point there (DNS
rebinding) read the answers too. So on a loopback address the Host header must be a name of this machine, and pages of
other sites are refused everywhere, unless they are allowed by name. Pages that a program of the same machine has made
may ask, and the browser is told (CORS) that they may read the answers.
"""

from __future__ import annotations

import errno
import hmac
import ipaddress
import logging
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import uvicorn
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from specrun.errors import SpecrunError, UsageError
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


_MOST_CONNECTIONS = 128  # each may bring a body of the largest size
_KEEP_CONNECTION_S = 75  # longer than clients do, so that they never use a connection that is being closed
# An address that stands for all of this machine's -> one far away, from those that are for documentation only.
_ALL_ADDRESSES = {"0.0.0.0": "192.0.2.1", "::": "2001:db8::1"}
_SECONDS_TO_END = 10  # for clients to read the end of their answers


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket on which connections can wait from now on. port: 0 takes a free one.

    Raises UsageError if the address does not belong to this machine, or the port is taken.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=128)
    except OSError as error:
        known = {
            errno.EADDRINUSE: f"port {port} of {host} is taken by another program; give another --port",
            errno.EACCES: f"this user may not open port {port}; give a --port above 1023",
        }
        why = known.get(error.errno or 0, f"--host {host} is no address of this machine ({error.strerror})")
        raise UsageError(why) from error
    except UnicodeError as error:  # of Python's codec for names, as for an empty part or a byte that is not UTF-8
        raise UsageError(f"--host {host} is no name of a machine; give an address such as 127.0.0.1") from error


def url(host: str, bound: socket.socket) -> str:
    """Where the server is found."""
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{bound.getsockname()[1]}"


def chat_url(bound: socket.socket) -> str:
    """Where a browser finds the page; if the server listens on all addresses, where one on another machine does."""
    host: str = bound.getsockname()[0]
    if host in _ALL_ADDRESSES:
        with socket.socket(bound.family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((_ALL_ADDRESSES[host], 9))  # sends nothing, but tells which address would
                host = probe.getsockname()[0]
            except OSError:  # no network
                host = "localhost"
    return url(host, bound)


class HttpServer:
    """A context manager: inside it, `app` answers on the socket. It ends with the block, or with `stop`."""

    def __init__(self, app: ASGIApp, bound: socket.socket) -> None:
        config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_keep_alive=_KEEP_CONNECTION_S,
            timeout_graceful_shutdown=_SECONDS_TO_END,
        )
        logging.getLogger("uvicorn.error").disabled = True  # `app` reports failures itself, and answers bad requests
        self._server = uvicorn.Server(config)
        self._bound = bound
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)

    def __enter__(self) -> HttpServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def is_running(self) -> bool:
        """Whether requests are answered. It ends by itself only if it fails."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Take no more requests, and wait some seconds until all answers are sent. Safe to call twice.

        Raises SpecrunError if the server had failed before.
        """
        self._server.should_exit = True
        try:
            self._thread.join()
        except BaseException:  # a second Ctrl-C
            self._server.force_exit = True
            self._thread.join()
            raise
        failure, self._failure = self._failure, None
        if failure:
            raise SpecrunError(f"the HTTP server failed: {failure}") from failure

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._bound])
        except BaseException as error:
            self._failure = error
