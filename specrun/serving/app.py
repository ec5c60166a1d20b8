"""The web application: which address is answered by what, and the page at /, with what a browser lets it do."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib import resources
from pathlib import PurePosixPath
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from specrun.errors import SpecrunError
from specrun.serving import llama_server, ollama
from specrun.serving.anthropic_messages import anthropic_messages, count_tokens
from specrun.serving.api_error import ANTHROPIC, SERVER_ERROR, ApiError, error_response, of_model
from specrun.serving.http_server import Access, Cors, Guard
from specrun.serving.openai_endpoints import chat_completions, completions
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
