"""The web application: which address is answered by what."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from specrun.errors import SpecrunError
from specrun.serving.anthropic_messages import AnthropicMessages
from specrun.serving.api_error import METHOD_NOT_ALLOWED, NOT_FOUND, SERVER_ERROR, ApiError, of_model
from specrun.serving.chat_completions import ChatCompletions
from specrun.serving.completions import Completions
from specrun.serving.error_response import ANTHROPIC, error_response
from specrun.serving.facts import Facts
from specrun.serving.guard import Guard
from specrun.serving.metrics import Metrics
from specrun.serving.page import page
from specrun.serving.service import Service
from specrun.serving.tokenizing import Tokenizing

Endpoint = Callable[[Request], Awaitable[Response]]
Report = Callable[[Exception], None]


@dataclass(frozen=True)
class Access:
    """Who may ask. The fields are those of `Guard`."""

    key: str | None = None
    only_local: bool = True
    origins: Sequence[str] = ()


def make_app(service: Service, access: Access, report: Report) -> ASGIApp:
    """The application. report: is told of an error that is none of a request's."""
    chat, completions = ChatCompletions(service), Completions(service)
    anthropic = AnthropicMessages(service)
    facts, tokenizing, metrics = Facts(service), Tokenizing(service), Metrics(service.totals, service.queue)

    async def health(_request: Request) -> Response:
        assert service.loaded
        return JSONResponse({"status": "ok"})

    routes = [
        Route("/", page),
        *_both("/health", health, "GET"),
        *_both("/chat/completions", chat.answer, "POST"),
        Route("/v1/completions", completions.answer, methods=["POST"]),
        Route(ANTHROPIC, anthropic.answer, methods=["POST"]),
        Route(f"{ANTHROPIC}/count_tokens", anthropic.count_tokens, methods=["POST"]),
        *_both("/models", facts.models, "GET"),
        Route("/props", facts.props),
        Route("/tokenize", tokenizing.tokenize, methods=["POST"]),
        Route("/detokenize", tokenizing.detokenize, methods=["POST"]),
        Route("/metrics", metrics.metrics),
    ]
    middleware = [Middleware(Guard, key=access.key, only_local=access.only_local, origins=access.origins)]
    if access.origins:
        cors = Middleware(CORSMiddleware, allow_origins=access.origins, allow_methods=["*"], allow_headers=["*"])
        middleware.insert(0, cors)
    handlers = dict.fromkeys((ApiError, SpecrunError, HTTPException, Exception), _refused)
    return _reported(Starlette(routes=routes, middleware=middleware, exception_handlers=handlers), report)


def _reported(app: ASGIApp, report: Report) -> ASGIApp:
    """`app`, whose failures are told to `report`, also those in the middle of an answer."""

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        except Exception as error:
            report(error)
            raise

    return run


def _both(path: str, endpoint: Endpoint, method: str) -> list[Route]:
    """The routes with and without /v1, as llama-server has them."""
    return [Route(prefix + path, endpoint, methods=[method]) for prefix in ("", "/v1")]


async def _refused(request: Request, error: Exception) -> Response:
    return error_response(request.url.path, _told(request, error))


def _told(request: Request, error: Exception) -> ApiError:
    """What the client is told of an error."""
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
