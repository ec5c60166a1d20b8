"""GET /v1/models and /props: what the model and the server are, in llama-server's shapes."""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from specrun import __version__
from specrun.serving.request_fields import Defaults
from specrun.serving.service import Service


class Facts:
    """The endpoints."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._started = int(time.time())

    async def models(self, _request: Request) -> Response:
        """The one model. `models` is a copy for clients that ask as they ask ollama."""
        loaded = self._service.loaded
        model, ctx_size = loaded.model.llama_model, loaded.model.engine.ctx_size
        form = loaded.prompts.form
        capabilities = [
            "completion",
            *(["chat"] if loaded.prompts.template else []),
            *(["tools"] if form.calls else []),
            *(["thinking"] if form.thinks or form.calls == "harmony" else []),
        ]
        entry = {
            "id": loaded.name,
            "object": "model",
            "created": self._started,
            "owned_by": "specrun",
            "capabilities": capabilities,
            "context_length": ctx_size,
            "meta": {
                "n_vocab": model.n_vocab,
                "n_ctx": ctx_size,
                "n_ctx_train": model.n_ctx_train,
                "size": model.n_bytes,
            },
        }
        copy = {"name": loaded.name, "model": loaded.name, "capabilities": capabilities, "details": {"format": "gguf"}}
        return JSONResponse({"object": "list", "data": [entry], "models": [copy]})

    async def props(self, _request: Request) -> Response:
        """What a request gets that says nothing else, and the chat template."""
        loaded = self._service.loaded
        model, ctx_size = loaded.model.llama_model, loaded.model.engine.ctx_size
        return JSONResponse(
            {
                "default_generation_settings": {"params": _settings(self._service.defaults), "n_ctx": ctx_size},
                "total_slots": len(loaded.model.lanes),
                "model_alias": loaded.name,
                "model_path": str(model.path),
                "modalities": {"vision": False, "audio": False},
                "chat_template": model.chat_template or "",
                "bos_token": model.special_token_text("bos"),
                "eos_token": model.special_token_text("eos"),
                "build_info": f"specrun-{__version__}",
                "speculation": [str(plan) for plan in loaded.model.plans.candidates],
            }
        )


def _settings(defaults: Defaults) -> dict[str, Any]:
    request = defaults.request
    sampling = request.sampling
    return {
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repeat_penalty": sampling.repeat_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repeat_last_n": sampling.repeat_last_n,
        "seed": defaults.seed,
        "max_tokens": request.max_tokens if request.max_tokens is not None else -1,
        "stop": list(request.stops),
    }
