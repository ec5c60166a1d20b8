"""POST /tokenize and /detokenize, in llama-server's shapes."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from specrun.llama import LlamaModel
from specrun.serving.api_error import refused
from specrun.serving.bodies import Fields, must, parsed, read_json
from specrun.serving.service import Service

_MOST_TOKENS = 2**21  # to be turned into text at once


class _Text(Fields):
    content: str = ""
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class _Tokens(Fields):
    tokens: Annotated[
        list[Annotated[int, Field(ge=0)]],
        Field(max_length=_MOST_TOKENS, fail_fast=True),
        must(f"be a list of at most {_MOST_TOKENS} token ids"),
    ] = Field([])


async def tokenize(service: Service, request: Request) -> Response:
    """Token ids of a text; with `with_pieces`, with what each stands for. Raises ApiError."""
    loaded = service.loaded
    model = loaded.model.llama_model
    given = parsed(_Text, await read_json(request))
    loaded.prompts.check_length(given.content)
    tokens = await run_in_threadpool(model.tokenize, given.content, given.add_special, given.parse_special)
    if given.with_pieces:
        return JSONResponse({"tokens": [{"id": token, "piece": _piece(model, token)} for token in tokens]})
    return JSONResponse({"tokens": tokens})


async def detokenize(service: Service, request: Request) -> Response:
    """The text of token ids. Raises ApiError."""
    model = service.loaded.model.llama_model
    tokens = parsed(_Tokens, await read_json(request)).tokens
    if max(tokens, default=0) >= model.n_vocab:
        raise refused("tokens", f"must be token ids below {model.n_vocab}")
    text = b"".join(model.token_bytes(token, special=True) for token in tokens)
    return JSONResponse({"content": text.decode("utf-8", errors="replace")})


def _piece(model: LlamaModel, token: int) -> Any:
    """The text of a token, or its bytes where they are a part of a character."""
    data = model.token_bytes(token, special=True)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return list(data)
