"""What the model and the server are, and what was written: GET /health, /v1/models, /props and /metrics.

Beside them, in llama-server's shapes too: POST /tokenize and /detokenize.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any

from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from specrun import __version__
from specrun.display_text import utf8
from specrun.llama import LlamaModel
from specrun.llama.named_template import CHATML
from specrun.serving.api_error import NOT_FOUND, ApiError, refused
from specrun.serving.bodies import Fields, must, parsed, read_json
from specrun.serving.service import Service

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"  # Prometheus'
_MOST_TOKENS = 2**21  # to be turned into text at once


async def health(service: Service, _request: Request) -> Response:
    assert service.loaded  # which raises ApiError before
    return JSONResponse({"status": "ok"})


async def models(service: Service, _request: Request) -> Response:
    """The model that is served. `models` is a copy for clients that ask as they ask ollama."""
    entry = _entry(service)
    copy = {name: entry[key] for name, key in (("name", "id"), ("model", "id"), ("capabilities", "capabilities"))}
    return JSONResponse({"object": "list", "data": [entry], "models": [{**copy, "details": {"format": "gguf"}}]})


async def model(service: Service, request: Request) -> Response:
    """The same model by its name. Raises ApiError for another name."""
    entry, name = _entry(service), request.path_params["name"]
    if name != entry["id"]:
        raise ApiError(f"there is no model {name}; this server has {entry['id']}", NOT_FOUND, code="model_not_found")
    return JSONResponse(entry)


def _entry(service: Service) -> dict[str, Any]:
    """The model in OpenAI's shape."""
    loaded = service.loaded
    model, ctx_size = loaded.model.llama_model, loaded.model.engine.ctx_size
    return {
        "id": loaded.name,
        "object": "model",
        "created": service.started,
        "owned_by": "specrun",
        "capabilities": loaded.capabilities,
        "context_length": ctx_size,
        "meta": {"n_vocab": model.n_vocab, "n_ctx": ctx_size, "n_ctx_train": model.n_ctx_train, "size": model.n_bytes},
    }


async def props(service: Service, _request: Request) -> Response:
    """The settings of a request that gives none, and the chat template."""
    loaded = service.loaded
    model, ctx_size = loaded.model.llama_model, loaded.model.engine.ctx_size
    return JSONResponse(
        {
            "default_generation_settings": {"params": service.defaults.settings(), "n_ctx": ctx_size},
            "total_slots": len(loaded.model.lanes.engines),
            "model_alias": loaded.name,
            "model_path": utf8(str(model.path)),
            "modalities": {"vision": False, "audio": False},
            "chat_template": model.chat_template or CHATML,
            "bos_token": model.special_token_text("bos"),
            "eos_token": model.special_token_text("eos"),
            "build_info": f"specrun-{__version__}",
            "speculation": [str(plan) for plan in loaded.model.plans.candidates],
        }
    )


async def metrics(service: Service, _request: Request) -> Response:
    """Sums since the server was started, and the present queue."""
    t, queue = service.totals, service.queue
    numbers = [(f.metadata["name"], getattr(t, f.name), f.metadata["what"]) for f in fields(t) if f.metadata]
    numbers += [
        ("tokens_per_pass", t.completion_tokens / max(t.passes, 1), "Mean accepted length."),
        ("requests_processing", queue.n_running, "Requests that are being answered."),
        ("requests_waiting", queue.n_waiting, "Requests that wait."),
        ("requests_refused_total", queue.n_refused, "Requests refused because too many waited."),
    ]
    lines = ["# HELP specrun_answers_total Answers, by why they ended.", "# TYPE specrun_answers_total counter"]
    lines += [f'specrun_answers_total{{reason="{reason}"}} {n}' for reason, n in sorted(dict(t.answers).items())]
    for name, value, what in numbers:
        kind = "counter" if name.endswith("_total") else "gauge"
        lines += [f"# HELP specrun_{name} {what}", f"# TYPE specrun_{name} {kind}", f"specrun_{name} {value:.9g}"]
    return PlainTextResponse("\n".join(lines) + "\n", media_type=_METRICS_TYPE)


class _Text(Fields):
    content: str = ""
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class _Tokens(Fields):
    tokens: Annotated[
        list[Annotated[int, Field(ge=0)]],
        Field(max_length=_MOST_TOKENS, fail_fast=True),
        must(f"be a list of at most {_MOST_TOKENS} token ids, from 0 on"),
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
    model = service.loaded.model.llama_model
    tokens = parsed(_Tokens, await read_json(request)).tokens
    if max(tokens, default=0) >= model.n_vocab:
        raise refused("tokens", f"must be token ids from 0 to {model.n_vocab - 1}")
    text = b"".join(model.token_bytes(token, special=True) for token in tokens)
    return JSONResponse({"content": text.decode("utf-8", errors="replace")})


def _piece(model: LlamaModel, token: int) -> Any:
    """The text of a token, or its bytes where they are a part of a character."""
    data = model.token_bytes(token, special=True)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return list(data)
