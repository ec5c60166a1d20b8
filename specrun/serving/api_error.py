"""Errors of requests. Below ANTHROPIC they are told in Anthropic's shape, and everywhere else in OpenAI's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse, Response

from specrun.errors import PromptError, SpecrunError, UsageError

ANTHROPIC = "/v1/messages"

BAD_REQUEST, UNAUTHORIZED, FORBIDDEN, NOT_FOUND, METHOD_NOT_ALLOWED = 400, 401, 403, 404, 405
TIMED_OUT, TOO_LARGE, SERVER_ERROR, UNAVAILABLE = 408, 413, 500, 503

# llama-server's names, which say more than OpenAI's.
_TYPES = {
    UNAUTHORIZED: "authentication_error",
    FORBIDDEN: "permission_error",
    NOT_FOUND: "not_found_error",
    SERVER_ERROR: "server_error",
    UNAVAILABLE: "unavailable_error",
}
_ANTHROPIC_TYPES = {
    **_TYPES,
    TOO_LARGE: "request_too_large",
    SERVER_ERROR: "api_error",
    UNAVAILABLE: "overloaded_error",
}
_INVALID = "invalid_request_error"


class ApiError(Exception):
    """A request that gets an error for an answer.

    message: what is wrong and what to do, in a sentence. status: of HTTP.
    param: the field that is wrong, if it is a field. code: a name for programs, where OpenAI has one.
    headers: further headers of the answer.
    """

    def __init__(
        self,
        message: str,
        status: int = BAD_REQUEST,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.param = param
        self.code = code
        self.headers = headers

    def as_openai(self) -> dict[str, Any]:
        """The object that OpenAI's clients read."""
        kind = _TYPES.get(self.status, _INVALID)
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def as_anthropic(self) -> dict[str, Any]:
        """The object that Anthropic's clients read."""
        # Agents look for these words, and shorten their conversation.
        begin = "prompt is too long: " if self.code == "context_length_exceeded" else ""
        kind = _ANTHROPIC_TYPES.get(self.status, _INVALID)
        return {"type": "error", "error": {"type": kind, "message": begin + self.message}}


def refused(param: str, why: str) -> ApiError:
    """The error that says what is wrong with a field."""
    return ApiError(f"{param} {why}", param=param)


def of_model(error: SpecrunError) -> ApiError:
    """The answer to a request that the model cannot be asked, or where it failed."""
    return ApiError(str(error), BAD_REQUEST if isinstance(error, PromptError | UsageError) else SERVER_ERROR)


def error_response(path: str, error: ApiError) -> Response:
    """The answer to a request for `path`."""
    is_anthropic = path == ANTHROPIC or path.startswith(f"{ANTHROPIC}/")
    told = error.as_anthropic() if is_anthropic else error.as_openai()
    return JSONResponse(told, error.status, dict(error.headers or {}))
