"""The web application: which address is answered by what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from specrun.errors import SpecrunError
from specrun.serving.anthropic_messages import anthropic_messages, count_tokens
from specrun.serving.api_error import (
    ANTHROPIC,
    METHOD_NOT_ALLOWED,
    NOT_FOUND,
    SERVER_ERROR,
    ApiError,
    error_response,
    of_model,
)
from specrun.serving.chat_completions import chat_completions
from specrun.serving.completions import completions
from specrun.serving.facts import health, metrics, models, props
from specrun.serving.guard import Guard
from specrun.serving.page import page
from specrun.serving.service import Service
from specrun.serving.tokenizing import detokenize, tokenize

Report = Callable[[Exception], None]


@dataclass(frozen=True)
class Access:
    """Who may ask. The fields are those of `Guard`."""

    key: str | None = None
    only_local: bool = True
    origins: Sequence[str] = ()


def make_app(service: Service, access: Access, report: Report) -> ASGIApp:
    """The application. report: is called with errors of the server itself."""

    def route(path: str, endpoint: Any, method: str = "POST") -> Route:
        return Route(path, partial(endpoint, service), methods=[method])

    routes = [
        Route("/", page),
        route("/health", health, "GET"),
        route("/v1/health", health, "GET"),
        route("/chat/completions", chat_completions),
        route("/v1/chat/completions", chat_completions),
        route("/v1/completions", completions),
        route(ANTHROPIC, anthropic_messages),
        route(f"{ANTHROPIC}/count_tokens", count_tokens),
        route("/models", models, "GET"),
        route("/v1/models", models, "GET"),
        route("/props", props, "GET"),
        route("/tokenize", tokenize),
        route("/detokenize", detokenize),
        route("/metrics", metrics, "GET"),
    ]
    middleware = [Middleware(Guard, key=access.key, only_local=access.only_local, origins=access.origins)]
    if access.origins:
        cors = Middleware(CORSMiddleware, allow_origins=access.origins, allow_methods=["*"], allow_headers=["*"])
        middleware.insert(0, cors)
    handlers = dict.fromkeys((ApiError, SpecrunError, HTTPException, Exception), _refused)
    return _reported(Starlette(routes=routes, middleware=middleware, exception_handlers=handlers), report)


def _reported(app: ASGIApp, report: Report) -> ASGIApp:
    """`app`, whose failures are reported, also in the middle of an answer."""

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        except Exception as error:
            report(error)
            raise

    return run


async def _refused(request: Request, error: Exception) -> Response:
    return error_response(request.url.path, _told(request, error))


def _told(request: Request, error: Exception) -> ApiError:
    """What the client gets to know about an error."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, SpecrunError):
        return of_model(error)
    if not isinstance(error, HTTPException):
        return ApiError("the server failed", SERVER_ERROR)
    path = request.url.path
    if error.status_code == NOT_FOUND:
        return ApiError(f"there is nothing at {path}", NOT_FOUND)
    if error.status_code == METHOD_NOT_ALLOWED:
        return ApiError(f"{request.method} is not possible at {path}", METHOD_NOT_ALLOWED, headers=error.headers)
    return ApiError(error.detail, error.status_code)
