"""The web application: which address is answered by what."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from specrun.errors import SpecrunError
from specrun.serving import ollama, ollama_facts
from specrun.serving.anthropic_messages import anthropic_messages, count_tokens
from specrun.serving.api_error import ANTHROPIC, SERVER_ERROR, ApiError, error_response, of_model
from specrun.serving.facts import detokenize, health, metrics, model, models, props, tokenize
from specrun.serving.guard import Access, Cors, Guard
from specrun.serving.llama_server import apply_template, completion, infill, slots
from specrun.serving.openai_endpoints import chat_completions, completions
from specrun.serving.responses import forget_response, kept_response, responses
from specrun.serving.service import Service
from specrun.serving.web_page import page

Report = Callable[[Exception], None]


def make_app(service: Service, access: Access, report: Report) -> ASGIApp:
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
    def route(path: str, endpoint: Any, method: str = "POST") -> Route:
        return Route(path, partial(endpoint, service), methods=[method])

    return [
        Route("/", page),
        Route("/web/{name:path}", page),
        route("/health", health, "GET"),
        route("/v1/health", health, "GET"),
        route("/chat/completions", chat_completions),
        route("/v1/chat/completions", chat_completions),
        route("/v1/completions", completions),
        route("/responses", responses),
        route("/v1/responses", responses),
        route("/v1/responses/{id}", kept_response, "GET"),
        route("/v1/responses/{id}", forget_response, "DELETE"),
        route(ANTHROPIC, anthropic_messages),
        route(f"{ANTHROPIC}/count_tokens", count_tokens),
        route("/models", models, "GET"),
        route("/v1/models", models, "GET"),
        route("/models/{name:path}", model, "GET"),
        route("/v1/models/{name:path}", model, "GET"),
        route("/props", props, "GET"),
        route("/completion", completion),
        route("/completions", completion),
        route("/infill", infill),
        route("/apply-template", apply_template),
        route("/slots", slots, "GET"),
        route("/tokenize", tokenize),
        route("/detokenize", detokenize),
        route("/metrics", metrics, "GET"),
        route("/api/chat", ollama.chat),
        route("/api/generate", ollama.generate),
        route("/api/show", ollama_facts.show),
        route("/api/tags", ollama_facts.tags, "GET"),
        route("/api/ps", ollama_facts.ps, "GET"),
        route("/api/version", ollama_facts.version, "GET"),
    ]


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
