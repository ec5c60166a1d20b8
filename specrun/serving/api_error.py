"""Errors of requests, told in the shape of whose address was asked: Anthropic's, Ollama's, everywhere else OpenAI's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from starlette.responses import JSONResponse, Response

from specrun.errors import PromptError, SpecrunError, UsageError

ANTHROPIC = "/v1/messages"
OLLAMA = "/api/"

BAD_REQUEST, UNAUTHORIZED, FORBIDDEN, NOT_FOUND = 400, 401, 403, 404
TIMED_OUT, TOO_LARGE, SERVER_ERROR, UNAVAILABLE = 408, 413, 500, 503

# llama-server's names, which say more than OpenAI's.
_TYPES = {
    UNAUTHORIZED: "authentication_error",
    FORBIDDEN: "permission_error",
    NOT_FOUND: "not_found_error",
    SERVER_ERROR: "server_error",
    UNAVAILABLE: "unavailable_error",
}
_ANTHROPIC_TYPES = {TOO_LARGE: "request_too_large", SERVER_ERROR: "api_error", UNAVAILABLE: "overloaded_error"}
_INVALID = "invalid_request_error"


@dataclass(eq=False)
class ApiError(Exception):
    """A request that gets an error for an answer.

    message: what is wrong and what to do, in a sentence. status: of HTTP.
    param: the field that is wrong, if it is a field. code: OpenAI's name for programs, if there is any.
    headers: further headers of the answer.
    """

    message: str
    status: int = BAD_REQUEST
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] | None = None

    def __str__(self) -> str:
        return self.message

    def renamed(self, names: Mapping[str, str]) -> ApiError:
        """The error with the client's name of its field. names: by how its name may begin."""
        for name, theirs in names.items():
            if self.param and self.param.startswith(name):
                message = self.message.replace(name, theirs, 1)
                return replace(self, param=self.param.replace(name, theirs, 1), message=message)
        return self

    def as_openai(self) -> dict[str, Any]:
        kind = _TYPES.get(self.status, _INVALID)
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def as_anthropic(self) -> dict[str, Any]:
        kind = (_TYPES | _ANTHROPIC_TYPES).get(self.status, _INVALID)
        return {"type": "error", "error": {"type": kind, "message": self.message}}

    def as_ollama(self) -> dict[str, Any]:
        return {"error": self.message}


class TooLongError(ApiError):
    """A prompt that does not fit the context. Programs look for the services' own words, and shorten what they send.

    n_tokens: of the prompt; if not `is_split`, as many at least.
    """

    def __init__(self, n_tokens: int, ctx_size: int, is_split: bool = True) -> None:
        least = "" if is_split else "at least "
        limit = f"This model's maximum context length is {ctx_size} tokens."
        result = f"However, your messages resulted in {least}{n_tokens} tokens."
        advice = "Please reduce the length of the messages, or start the server with a larger --ctx-size."
        super().__init__(f"{limit} {result} {advice}", code="context_length_exceeded")
        self._sizes = f"{n_tokens} tokens > {ctx_size} maximum"

    def as_anthropic(self) -> dict[str, Any]:
        told = super().as_anthropic()
        told["error"]["message"] = f"prompt is too long: {self._sizes}; start the server with a larger --ctx-size"
        return told


def refused(param: str, why: str) -> ApiError:
    """The error that says what is wrong with a field."""
    return ApiError(f"{param} {why}", param=param)


def of_model(error: SpecrunError) -> ApiError:
    """The answer to a request that the model cannot be asked, or where it failed."""
    return ApiError(str(error), BAD_REQUEST if isinstance(error, PromptError | UsageError) else SERVER_ERROR)


def error_response(path: str, error: ApiError) -> Response:
    told = error.as_openai()
    if path == ANTHROPIC or path.startswith(f"{ANTHROPIC}/"):
        told = error.as_anthropic()
    elif path.startswith(OLLAMA):
        told = error.as_ollama()
    return JSONResponse(told, error.status, dict(error.headers or {}))
