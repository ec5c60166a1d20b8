"""Ollama's addresses: POST /api/chat, /api/generate and /api/show, GET /api/version, /api/tags and /api/ps.

Requests are turned into OpenAI's shape, so that both are read in the same way. Answers are lines of JSON.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from functools import partial
from typing import Annotated, Any

from pydantic import Field, InstanceOf
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from specrun.llama.chat_template import CHATML
from specrun.reading.deltas import CallDelta, Delta, arguments_of
from specrun.serving.answers import Answer, Asked, Shape, answering
from specrun.serving.prompts import MOST_MESSAGES
from specrun.serving.refusals import ApiError, refused, renaming
from specrun.serving.request_fields import Fields, Integer, Json, parsed
from specrun.serving.service import LoadedService, Service
from specrun.serving.wanted import read_chat, read_text, text_prompts

# Of the options, those that have the same name here. Ollama ignores unknown ones, too.
_SAME = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "stop", "repeat_penalty", "repeat_last_n"),
    *("presence_penalty", "frequency_penalty"),
)


# Of the fields in OpenAI's shape -> what they are called here, for messages about what is wrong in them.
_NAMES = {name: f"options.{name}" for name in _SAME} | {
    "max_tokens": "options.num_predict",
    "json_schema": "format",
    "reasoning_effort": "think",
}


class _Options(Fields):
    num_predict: Integer | None = None


class _OllamaFields(Fields):
    options: InstanceOf[Json] = Field({})
    format: str | InstanceOf[Json] = ""
    think: bool | str = True
    stream: bool = True
    keep_alive: Any = None
    images: list[Any] = Field([])


class _Message(Fields):
    role: str
    content: str = ""
    thinking: str = ""
    images: list[Any] = Field([])
    tool_calls: Any = None
    tool_call_id: Any = None
    tool_name: str = ""


class _ChatFields(_OllamaFields):
    messages: Annotated[list[_Message], Field(max_length=MOST_MESSAGES, fail_fast=True)] = Field([])
    tools: Any = None


class _GenerateFields(_OllamaFields):
    prompt: str = ""
    suffix: str = ""
    system: str = ""
    template: str = ""
    raw: bool = False


@answering
@renaming(_NAMES)
def chat(service: Service, body: Json) -> Asked | Response:
    """The next message of a conversation. Raises SpecrunError and ApiError."""
    given = parsed(_ChatFields, body)
    if not given.messages:
        return _loaded(_said(True, ""), service, given)
    messages = []
    for i, message in enumerate(given.messages):
        if message.images:
            raise refused(f"messages[{i}].images", "cannot be read by this model")
        told = message.model_dump(include={"role", "content", "tool_calls", "tool_call_id"})
        messages.append(told | {"reasoning_content": message.thinking, "name": message.tool_name})
    wanted = read_chat(service, {**_openai_body(given), "messages": messages, "tools": given.tools})
    return wanted, _OllamaShape(service.loaded, is_chat=True)


@answering
@renaming(_NAMES)
def generate(service: Service, body: Json) -> Asked | Response:
    """The answer to a prompt, or its continuation. Raises SpecrunError and ApiError."""
    given = parsed(_GenerateFields, body)
    if given.template:
        raise refused("template", "cannot be given here; with raw the prompt is taken as it is")
    if not (given.prompt or given.suffix):
        return _loaded(_said(False, ""), service, given)
    asked, prompts = _openai_body(given), service.loaded.prompts
    if given.suffix:
        wanted = read_text(service, asked, [prompts.of_gap(given.prompt, given.suffix)])
    elif given.raw:
        wanted = read_text(service, asked, text_prompts(prompts, given.prompt, False))
    else:
        system = [{"role": "system", "content": given.system}] if given.system else []
        wanted = read_chat(service, {**asked, "messages": [*system, {"role": "user", "content": given.prompt}]})
    return wanted, _OllamaShape(service.loaded, is_chat=False)


def _openai_body(given: _OllamaFields) -> Json:
    """What asks for the same in OpenAI's shape, but for the texts. Raises ApiError for what cannot be asked."""
    if given.images:
        raise refused("images", "cannot be read by this model")
    body = {name: given.options.get(name) for name in _SAME}
    limit = parsed(_Options, given.options, "options").num_predict
    # Anything below 1 is no limit for Ollama.
    body |= {"stream": given.stream, "max_tokens": -1 if limit is not None and limit < 1 else limit}
    if isinstance(given.format, dict):
        body["json_schema"] = given.format
    elif given.format == "json":
        body["response_format"] = {"type": "json_object"}
    elif given.format:
        raise refused("format", "must be json or a JSON schema")
    if given.think is not True:
        body["reasoning_effort"] = given.think or "none"
    return body


def _loaded(said: Json, service: Service, given: _OllamaFields) -> Response:
    """The answer to a request without a text, by which clients have a model loaded or unloaded. It stays loaded."""
    reason = "unload" if given.keep_alive in (0, "0") else "load"
    return JSONResponse({**_head(service.loaded.name), **said, "done_reason": reason, "done": True})


def _head(name: str) -> Json:
    return {"model": name, "created_at": _time(datetime.now(timezone.utc))}


def _said(is_chat: bool, content: str, thinking: str = "", calls: Sequence[CallDelta] = ()) -> Json:
    """An addition to an answer, or all of it."""
    further: Json = {"thinking": thinking} if thinking else {}
    if not is_chat:
        return {"response": content, **further}
    told = [{"function": {"name": call.name, "arguments": arguments_of(call.arguments)}} for call in calls]
    return {"message": {"role": "assistant", "content": content, **further, **({"tool_calls": told} if told else {})}}


class _OllamaShape(Shape):
    """Of /api/chat, or of /api/generate. A call of a tool is sent when it is complete."""

    media_type = "application/x-ndjson"

    def __init__(self, loaded: LoadedService, is_chat: bool) -> None:
        self._said = partial(_said, is_chat)
        self._name = loaded.name
        self._began = time.monotonic()
        self._call: list[Delta] = []  # the additions to the call that is being written
        self.keep_alive = self._line(self._said(""))  # every line has to be an object

    def whole(self, answers: Sequence[Answer]) -> Json:
        (answer,) = answers
        said = self._said(answer.content, answer.reasoning, answer.calls)
        return {**_head(self._name), **said, **self._ending(answer)}

    def added(self, addition: Answer) -> Iterator[bytes]:
        for delta in addition.deltas:
            if not delta.call:
                yield self._line(self._said(delta.content, delta.reasoning))
                continue
            if delta.call.name is not None:
                yield from self._complete()
            self._call.append(delta)
        if addition.completion:
            yield from self._complete()
            yield self._line({**self._said(""), **self._ending(addition)})

    def failure(self, error: ApiError) -> bytes:
        return f"{json.dumps(error.as_ollama())}\n".encode()

    def _line(self, values: Json) -> bytes:
        whole = {**_head(self._name), "done": False, **values}
        return f"{json.dumps(whole, ensure_ascii=False, separators=(',', ':'))}\n".encode()

    def _complete(self) -> Iterator[bytes]:
        """The call that was being written, if there is one: another begins, or the answer ends."""
        if self._call:
            yield self._line(self._said("", calls=Answer(0, self._call).calls))
        self._call = []

    def _ending(self, answer: Answer) -> Json:
        """Why the answer ended, numbers of tokens, and times in nanoseconds."""
        s = answer.ended.statistics
        return {
            "done": True,
            "done_reason": "length" if answer.finish == "length" else "stop",
            "total_duration": int((time.monotonic() - self._began) * 1e9),
            "load_duration": 0,
            "prompt_eval_count": s.prompt_tokens,
            "prompt_eval_duration": int(s.prefill_seconds * 1e9),
            "eval_count": len(answer.ended.token_ids),
            "eval_duration": int(s.seconds * 1e9),
        }


_VERSION = "0.9.0"  # of the Ollama whose addresses are answered; clients refuse one that is too old for them
_INFO = (
    *("general.architecture", "general.name", "general.basename", "general.size_label", "general.file_type"),
    *("{}.block_count", "{}.embedding_length", "{}.feed_forward_length", "{}.expert_count"),
    *("{}.attention.head_count", "{}.attention.head_count_kv", "tokenizer.ggml.model", "tokenizer.ggml.pre"),
)


async def version(_service: Service, _request: Request) -> Response:
    return JSONResponse({"version": _VERSION})


async def tags(service: Service, _request: Request) -> Response:
    return JSONResponse({"models": [_model_entry(service)]})


async def ps(service: Service, _request: Request) -> Response:
    """The models that are loaded. How much of it is in VRAM is not told."""
    loaded = {"expires_at": "9999-12-31T23:59:59Z", "context_length": service.loaded.model.engine.ctx_size}
    return JSONResponse({"models": [_model_entry(service) | loaded]})


async def show(service: Service, _request: Request) -> Response:
    """More of the model, whatever name is asked for."""
    loaded = service.loaded
    model, ctx_size = loaded.model.llama_model, loaded.model.engine.ctx_size
    architecture = model.file.architecture
    given = {key: model.file.metadata.get(key) for key in (name.format(architecture) for name in _INFO)}
    info: Json = {k: v for k, v in given.items() if v not in (None, "") and not isinstance(v, list)}
    info |= {
        "general.parameter_count": model.file.n_parameters,
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
            "modified_at": _started(service),
        }
    )


def _model_entry(service: Service) -> Json:
    loaded = service.loaded
    model = loaded.model.llama_model
    # Weights are not read for it; it only has to differ from other models'.
    digest = hashlib.sha256(f"{model.path} {model.n_bytes}".encode(errors="surrogateescape")).hexdigest()
    return {
        "name": loaded.name,
        "model": loaded.name,
        "modified_at": _started(service),
        "size": model.n_bytes,
        "digest": digest,
        "details": _details(service),
    }


def _details(service: Service) -> Json:
    model = service.loaded.model.llama_model
    family, n = model.file.architecture, model.file.n_parameters
    return {
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family],
        "parameter_size": f"{n / 1e9:.1f}B" if n >= 1e9 else f"{n / 1e6:.2f}M",
        "quantization_level": model.file.quantization,
    }


def _started(service: Service) -> str:
    return _time(datetime.fromtimestamp(service.started, timezone.utc))


def _time(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")
