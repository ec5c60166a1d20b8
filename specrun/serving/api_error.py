"""Errors of requests, and OpenAI's object for them. Its `type` is llama-server's, which says more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specrun.errors import PromptError, SpecrunError, UsageError

BAD_REQUEST, UNAUTHORIZED, FORBIDDEN, NOT_FOUND, METHOD_NOT_ALLOWED = 400, 401, 403, 404, 405
TIMED_OUT, TOO_LARGE, SERVER_ERROR, UNAVAILABLE = 408, 413, 500, 503

_TYPES = {
    UNAUTHORIZED: "authentication_error",
    FORBIDDEN: "permission_error",
    NOT_FOUND: "not_found_error",
    SERVER_ERROR: "server_error",
    UNAVAILABLE: "unavailable_error",
}


class ApiError(Exception):
    """A request that gets an error for an answer.

    message: what is wrong and what to do, in a sentence. status: of HTTP.
    param: the field that is wrong; None where it is none. code: a name for programs; None where OpenAI has none.
    headers: further ones of the answer.
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

    @property
    def type(self) -> str:
        """The kind of error, by its status."""
        return _TYPES.get(self.status, "invalid_request_error")

    def as_json(self) -> dict[str, Any]:
        """The object that OpenAI's clients read."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


def of_model(error: SpecrunError) -> ApiError:
    """The answer to a request that the model could not be asked, or where it failed."""
    if isinstance(error, PromptError | UsageError):
        return ApiError(str(error))
    return ApiError(str(error), SERVER_ERROR)
