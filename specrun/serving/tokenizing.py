"""POST /tokenize and /detokenize, in llama-server's shapes."""

from __future__ import annotations

from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from specrun.llama import LlamaModel
from specrun.serving.bodies import read_json
from specrun.serving.fields import Fields, is_integer
from specrun.serving.service import Service

_MOST_TOKENS = 2**21  # to be turned into text at once


class Tokenizing:
    """The endpoints."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def tokenize(self, request: Request) -> Response:
        """Token ids of a text; with `with_pieces`, with what each stands for. Raises ApiError."""
        loaded = self._service.loaded
        model = loaded.model.llama_model
        fields = Fields(await read_json(request))
        text = fields.text("content") or ""
        loaded.prompts.check_length(text)
        add_special = bool(fields.flag("add_special"))
        parse_special = fields.flag("parse_special") is not False
        tokens = await run_in_threadpool(model.tokenize, text, add_special, parse_special)
        if fields.flag("with_pieces"):
            return JSONResponse({"tokens": [{"id": token, "piece": _piece(model, token)} for token in tokens]})
        return JSONResponse({"tokens": tokens})

    async def detokenize(self, request: Request) -> Response:
        """The text of token ids. Raises ApiError."""
        model = self._service.loaded.model.llama_model
        fields = Fields(await read_json(request))
        tokens = fields.items("tokens", _MOST_TOKENS)
        if not all(is_integer(token) and 0 <= token < model.n_vocab for token in tokens):
            fields.refuse("tokens", f"must be a list of token ids below {model.n_vocab}")
        text = b"".join(model.token_bytes(token, special=True) for token in tokens)
        return JSONResponse({"content": text.decode("utf-8", errors="replace")})


def _piece(model: LlamaModel, token: int) -> Any:
    """The text of a token, or its bytes where they are a part of a character."""
    data = model.token_bytes(token, special=True)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return list(data)
