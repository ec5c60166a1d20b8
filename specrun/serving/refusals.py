"""Requests that get an error for an answer, told in the shape of whose address was asked: Anthropic's, Ollama's,
everywhere else OpenAI's; and who may ask at all.

A page of any site can let the browser send requests to 127.0.0.1, and with a name that its owner lets point there (DNS
rebinding) read the answers too. So on a loopback address the Host header must be a name of this machine, and pages of
other sites are refused everywhere, unless they are allowed by name. Pages that a program of the same machine has made
may ask, and the browser is told (CORS) that they may read the answers.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

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
    headers: further headers of the answer. for_anthropic: the message in Anthropic's words, where they differ.
    """

    message: str
    status: int = BAD_REQUEST
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] | None = None
    for_anthropic: str = ""

    def __str__(self) -> str:
        return self.message

    def as_openai(self) -> dict[str, Any]:
        kind = _TYPES.get(self.status, _INVALID)
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def as_anthropic(self) -> dict[str, Any]:
        kind = (_TYPES | _ANTHROPIC_TYPES).get(self.status, _INVALID)
        return {"type": "error", "error": {"type": kind, "message": self.for_anthropic or self.message}}

    def as_ollama(self) -> dict[str, Any]:
        return {"error": self.message}


def too_long(n_tokens: int, ctx_size: int, is_split: bool = True) -> ApiError:
    """The error of a prompt that does not fit the context. Programs look for the services' own words, and shorten what
    they send.

    n_tokens: of the prompt; if not `is_split`, as many at least.
    """
    limit = f"This model's maximum context length is {ctx_size} tokens."
    result = f"However, your messages resulted in {'' if is_split else 'at least '}{n_tokens} tokens."
    advice = "start the server with a larger --ctx-size"
    openai = f"{limit} {result} Please reduce the length of the messages, or {advice}."
    anthropic = f"prompt is too long: {n_tokens} tokens > {ctx_size} maximum; {advice}"
    return ApiError(openai, code="context_length_exceeded", for_anthropic=anthropic)


def refused(param: str, why: str) -> ApiError:
    """The error that says what is wrong with a field."""
    return ApiError(f"{param} {why}", param=param)


@contextmanager
def renaming(names: Mapping[str, str]) -> Iterator[None]:
    """Inside it, errors have the client's names of fields. names: by how ours may begin."""
    try:
        yield
    except ApiError as error:
        for name, theirs in names.items():
            if error.param and error.param.startswith(name):
                message = error.message.replace(name, theirs, 1)
                raise replace(error, param=error.param.replace(name, theirs, 1), message=message) from None
        raise


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


# Whether the server is alive, and the page, which asks for the key. They say nothing about the model.
_OPEN = frozenset({"/health", "/v1/health", "/"})
_PAGE = "/web/"  # below which its files are
# Of pages within programs: Electron's, Tauri's, and views of VS Code's extensions. No site can have such an origin.
_WEB = frozenset({"http", "https"})
_PROGRAMS = frozenset({"app", "tauri", "vscode-webview"})


def is_loopback(host: str) -> bool:
    """Whether a name or an address is only for programs on this machine."""
    name = host.strip("[]").rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class Access:
    """Who may ask.

    key: what clients must send; None for no key. only_local: whether the server listens on a loopback address.
    origins: pages of other sites that may ask; "*" for all.
    """

    key: str | None = None
    only_local: bool = True
    origins: Sequence[str] = ()

    def may_read(self, origin: str) -> bool:
        """Whether pages of this origin may read answers: they are allowed by name, or a program here has made them."""
        if "*" in self.origins or origin in self.origins:
            return True
        scheme, _, host = _parts(origin)
        return scheme in _PROGRAMS or (scheme in _WEB and is_loopback(host))


class Cors(CORSMiddleware):
    """Tells browsers which pages may read the answers, also those that the guard gives."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        super().__init__(app, allow_methods=["*"], allow_headers=["*"])
        self._access = access

    def is_allowed_origin(self, origin: str) -> bool:
        return self._access.may_read(origin)


class Guard:
    """Passes on what may be answered, and answers the rest with an error."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        error = self._refusal(scope["path"], Headers(scope=scope))
        answer = error_response(scope["path"], error) if error else self._app
        await answer(scope, receive, send)

    def _refusal(self, path: str, headers: Headers) -> ApiError | None:
        host = headers.get("host", "")
        if self._access.only_local and not is_loopback(_parts(f"//{host}")[2]):
            return ApiError("this server listens on this machine only; ask for it as 127.0.0.1 or localhost", FORBIDDEN)
        origin = headers.get("origin")
        if origin is not None and not self._may_ask(origin, host):
            return ApiError(f"pages of {origin} may not ask this server; --cors-origin allows them", FORBIDDEN)
        is_open = path in _OPEN or path.startswith(_PAGE)
        if self._access.key and not is_open and not _has_key(headers, self._access.key):
            return ApiError(
                "the API key is missing or wrong; send it as `Authorization: Bearer KEY` or `x-api-key: KEY`",
                UNAUTHORIZED,
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return None

    def _may_ask(self, origin: str, host: str) -> bool:
        """Whether a page may ask: it is this server's, it may read answers, or it is no site's.

        The last are extensions of the browser, which itself decides whether they may read answers.
        """
        if self._access.may_read(origin):
            return True
        scheme, netloc, _ = _parts(origin)
        if scheme in _WEB:
            return netloc == host
        return bool(scheme)  # "null" has none, and any site's page can give itself this origin


def _parts(address: str) -> tuple[str, str, str]:
    """Scheme, host with port, and host of an address; empty where it is none."""
    try:
        parts = urlsplit(address)
        return parts.scheme, parts.netloc, parts.hostname or ""
    except ValueError:
        return "", "", ""


def _has_key(headers: Headers, key: str) -> bool:
    """Whether one of the two headers has the key: programs fill the one that they do not use with anything."""
    authorization = headers.get("authorization", "")
    scheme, _, token = authorization.partition(" ")
    given = (token.strip() if scheme.lower() == "bearer" else authorization, headers.get("x-api-key", ""))
    # As they came: headers are read as latin-1, and what is not UTF-8 on the command line as lone surrogates.
    wanted = key.encode(errors="surrogateescape")
    return any(hmac.compare_digest(text.encode("latin-1"), wanted) for text in given)
