"""The web application: which address is answered by what, and the page at /, with what a browser lets it do; and the
thread that serves it, on a socket that is opened before anything else is done.
"""

from __future__ import annotations

import errno
import logging
import socket
import threading
from collections.abc import Callable
from functools import cache, partial
from importlib import resources
from pathlib import PurePosixPath
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from specrun.errors import SpecrunError, UsageError
from specrun.serving import llama_server, ollama
from specrun.serving.anthropic_messages import anthropic_messages, count_tokens
from specrun.serving.openai_endpoints import chat_completions, completions
from specrun.serving.refusals import ANTHROPIC, SERVER_ERROR, Access, ApiError, Cors, Guard, error_response, of_model
from specrun.serving.responses import kept_response, responses
from specrun.serving.service import Service

_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
# It may load its own files and ask this server, and nothing else. No text may become a script or an element.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


async def page(request: Request) -> Response:
    """A page to chat in a browser, or a file of it. Raises HTTPException if there is none of this name."""
    name = PurePosixPath(request.path_params.get("name", "index.html"))
    content = _files().get(name)
    if content is None:
        raise HTTPException(404)
    return Response(content, headers=_HEADERS, media_type=_TYPES[name.suffix])


@cache
def _files() -> dict[PurePosixPath, bytes]:
    """What the page consists of: its own files, and the libraries in `vendor`."""
    top = resources.files("specrun.serving") / "web"
    return {
        PurePosixPath(prefix, file.name): file.read_bytes()
        for prefix in ("", "vendor")
        for file in (top / prefix).iterdir()
        if PurePosixPath(file.name).suffix in _TYPES
    }


def make_app(service: Service, access: Access, report: Callable[[Exception], None]) -> ASGIApp:
    """The application. report: is called with errors of the server itself."""
    middleware = [Middleware(Cors, access=access), Middleware(Guard, access=access)]
    handlers = dict.fromkeys((ApiError, SpecrunError, HTTPException, Exception), _refused)
    app = Starlette(routes=_routes(service), middleware=middleware, exception_handlers=handlers)
    app.router.redirect_slashes = False  # `reporting` has taken them away

    async def reporting(scope: Scope, receive: Receive, send: Send) -> None:
        # Some clients join addresses with a slash too many, and do not send their body again to where they are sent.
        scope["path"] = scope["path"].rstrip("/") or "/"
        try:
            await app(scope, receive, send)
        except Exception as error:  # which may come in the middle of an answer
            report(error)
            raise

    return reporting


def _routes(service: Service) -> list[Route]:
    shared = {  # also found below /v1
        "/health": ("GET", llama_server.health),
        "/models": ("GET", llama_server.models),
        "/models/{name:path}": ("GET", llama_server.model),
        "/chat/completions": ("POST", chat_completions),
        "/responses": ("POST", responses),
    }
    endpoints: dict[str, tuple[str, Any]] = {
        **shared,
        **{f"/v1{path}": endpoint for path, endpoint in shared.items()},
        "/v1/completions": ("POST", completions),
        "/v1/responses/{id}": ("GET DELETE", kept_response),
        ANTHROPIC: ("POST", anthropic_messages),
        f"{ANTHROPIC}/count_tokens": ("POST", count_tokens),
        "/props": ("GET", llama_server.props),
        "/completion": ("POST", llama_server.completion),
        "/completions": ("POST", llama_server.completion),
        "/infill": ("POST", llama_server.infill),
        "/apply-template": ("POST", llama_server.apply_template),
        "/slots": ("GET", llama_server.slots),
        "/tokenize": ("POST", llama_server.tokenize),
        "/detokenize": ("POST", llama_server.detokenize),
        "/metrics": ("GET", llama_server.metrics),
        "/api/chat": ("POST", ollama.chat),
        "/api/generate": ("POST", ollama.generate),
        "/api/show": ("POST", ollama.show),
        "/api/tags": ("GET", ollama.tags),
        "/api/ps": ("GET", ollama.ps),
        "/api/version": ("GET", ollama.version),
    }
    routes = [Route(path, partial(one, service), methods=names.split()) for path, (names, one) in endpoints.items()]
    return [Route("/", page), Route("/web/{name:path}", page), *routes]


async def _refused(request: Request, error: Exception) -> Response:
    path, told = request.url.path, ApiError("the server failed", SERVER_ERROR)
    if isinstance(error, ApiError):
        told = error
    elif isinstance(error, SpecrunError):
        told = of_model(error)
    elif isinstance(error, HTTPException):
        messages = {404: f"there is nothing at {path}", 405: f"{request.method} is not possible at {path}"}
        told = ApiError(messages.get(error.status_code, error.detail), error.status_code, headers=error.headers)
    return error_response(path, told)


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
