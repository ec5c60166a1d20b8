"""The web application: which address is answered by what."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from specrun.errors import SpecrunError
from specrun.serving.api_error import METHOD_NOT_ALLOWED, NOT_FOUND, ApiError, of_model
from specrun.serving.chat_completions import ChatCompletions
from specrun.serving.service import Service


def make_app(service: Service) -> Starlette:
    """The application."""

    async def health(_request: Request) -> Response:
        assert service.loaded
        return JSONResponse({"status": "ok"})

    chat_completions = ChatCompletions(service)
    routes = [
        Route("/health", health),
        Route("/v1/health", health),
        Route("/v1/chat/completions", chat_completions.answer, methods=["POST"]),
        Route("/chat/completions", chat_completions.answer, methods=["POST"]),
    ]
    return Starlette(
        routes=routes,
        exception_handlers={ApiError: _refused, SpecrunError: _failed, HTTPException: _no_such_route},
    )


async def _refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


async def _failed(_request: Request, error: Exception) -> Response:
    assert isinstance(error, SpecrunError)
    return of_model(error).response()


async def _no_such_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path}"
    if error.status_code == NOT_FOUND:
        return ApiError(f"there is nothing at {request.url.path}", NOT_FOUND).response()
    if error.status_code == METHOD_NOT_ALLOWED:
        return ApiError(f"{what} is not possible", METHOD_NOT_ALLOWED, headers=error.headers).response()
    return ApiError(error.detail, error.status_code).response()
