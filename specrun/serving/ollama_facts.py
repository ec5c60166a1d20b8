"""What the model is in Ollama's shapes: GET /api/version, /api/tags and /api/ps, POST /api/show."""

from __future__ import annotations

import hashlib
from datetime import datetime, timezone
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from specrun.llama.named_template import CHATML
from specrun.serving.service import Service

_VERSION = "0.9.0"  # of the Ollama whose addresses are answered; clients refuse one that is too old for them
_NEVER = "9999-12-31T23:59:59Z"
_INFO = (
    *("general.architecture", "general.name", "general.basename", "general.size_label", "general.file_type"),
    *("{}.block_count", "{}.embedding_length", "{}.feed_forward_length", "{}.expert_count"),
    *("{}.attention.head_count", "{}.attention.head_count_kv", "tokenizer.ggml.model", "tokenizer.ggml.pre"),
)


async def version(_service: Service, _request: Request) -> Response:
    return JSONResponse({"version": _VERSION})


async def tags(service: Service, _request: Request) -> Response:
    return JSONResponse({"models": [_entry(service)]})


async def ps(service: Service, _request: Request) -> Response:
    """The models that are loaded. How much of it is in VRAM is not told."""
    loaded = {"expires_at": _NEVER, "context_length": service.loaded.model.engine.ctx_size}
    return JSONResponse({"models": [_entry(service) | loaded]})


async def show(service: Service, _request: Request) -> Response:
    """More of the model, whatever name is asked for."""
    loaded = service.loaded
    model, ctx_size = loaded.model.llama_model, loaded.model.engine.ctx_size
    architecture = model.metadata("general.architecture") or "unknown"
    given = {key: model.metadata(key) for key in (name.format(architecture) for name in _INFO)}
    info: dict[str, Any] = {k: int(v) if v.isdecimal() else v for k, v in given.items() if v and v[0] != "["}
    info |= {
        "general.parameter_count": model.n_parameters,
        # The server's, as clients send as much as they read here.
        f"{architecture}.context_length": ctx_size,
        f"{architecture}.vocab_size": model.n_vocab,
    }
    return JSONResponse(
        {
            "modelfile": f"# {loaded.name}, served by specrun",
            "parameters": f"num_ctx {ctx_size}",
            "template": model.chat_template or CHATML,
            "details": _details(service),
            "model_info": info,
            "capabilities": loaded.capabilities,
            "modified_at": _time(service.started),
        }
    )


def _entry(service: Service) -> dict[str, Any]:
    loaded = service.loaded
    model = loaded.model.llama_model
    # Weights are not read for it; it only has to differ from other models'.
    digest = hashlib.sha256(f"{model.path} {model.n_bytes}".encode(errors="surrogateescape")).hexdigest()
    return {
        "name": loaded.name,
        "model": loaded.name,
        "modified_at": _time(service.started),
        "size": model.n_bytes,
        "digest": digest,
        "details": _details(service),
    }


def _details(service: Service) -> dict[str, Any]:
    model = service.loaded.model.llama_model
    family, n = model.metadata("general.architecture") or "unknown", model.n_parameters
    return {
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family],
        "parameter_size": f"{n / 1e9:.1f}B" if n >= 1e9 else f"{n / 1e6:.2f}M",
        "quantization_level": model.quantization,
    }


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat().replace("+00:00", "Z")
