"""An error as the answer to a request, in the shape of the address that was asked."""

from __future__ import annotations

from starlette.responses import JSONResponse, Response

from specrun.serving import anthropic_shapes
from specrun.serving.api_error import ApiError

ANTHROPIC = "/v1/messages"  # here and below, errors have Anthropic's shape; everywhere else OpenAI's


def error_response(path: str, error: ApiError) -> Response:
    """The answer to a request for `path`."""
    is_anthropic = path == ANTHROPIC or path.startswith(f"{ANTHROPIC}/")
    told = anthropic_shapes.error_json(error) if is_anthropic else error.as_json()
    return JSONResponse(told, error.status, dict(error.headers or {}))
