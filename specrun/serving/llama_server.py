"""llama-server's own addresses, and what the model and the server are.

POST /completion, /infill, /apply-template, /tokenize and /detokenize; GET /slots, /health, /v1/models, /props and
/metrics.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from specrun import __version__
from specrun.display_text import utf8
from specrun.llama import LlamaModel
from specrun.llama.chat_template import CHATML
from specrun.sampling.sampler import TokenLogprob
from specrun.serving.answers import Answer, Asked, Shape, answering, frame, in_thread, logprobs_json, timings_json
from specrun.serving.prompts import Prompt
from specrun.serving.refusals import NOT_FOUND, UNAVAILABLE, ApiError, refused
from specrun.serving.request_fields import (
    MOST_LOGPROBS,
    Defaults,
    Fields,
    Integer,
    Json,
    Sending,
    must,
    parsed,
    read_json,
)
from specrun.serving.service import SUMS, LoadedService, Service, cached_tokens
from specrun.serving.wanted import TextPrompt, Wanted, read_chat, read_text, text_prompts

_MOST_FILES = 1000


class _NativeFields(Fields):
    n_predict: Integer | None = None
    n_probs: Annotated[Integer, Field(ge=0, le=MOST_LOGPROBS)] = 0
    return_tokens: bool = False


class _CompletionFields(_NativeFields):
    prompt: TextPrompt


class _File(Fields):
    filename: str = ""
    text: str


class _InfillFields(_NativeFields):
    input_prefix: str
    input_suffix: str
    input_extra: Annotated[list[_File], Field(max_length=_MOST_FILES, fail_fast=True)] = Field([])
    prompt: str = ""


@answering
def completion(service: Service, body: Json) -> Asked:
    """The endpoint at which texts are continued. Raises SpecrunError and ApiError, as the others do."""
    given, sending = parsed(_CompletionFields, body), parsed(Sending, body)
    made = text_prompts(service.loaded.prompts, given.prompt, not sending.cache_prompt)
    return _asked(service, body, made, given)


@answering
def infill(service: Service, body: Json) -> Asked:
    """The endpoint at which a gap is filled."""
    given = parsed(_InfillFields, body)
    files = [(file.filename, file.text) for file in given.input_extra]
    texts = given.input_prefix, given.input_suffix
    made = service.loaded.prompts.of_gap(*texts, files, given.prompt, param="input_suffix")
    return _asked(service, body, [made], given)


def _asked(service: Service, body: Json, made: Sequence[Prompt], given: _NativeFields) -> Asked:
    # Editors have a prompt read in advance. A token has to be written for that, and is not sent.
    if given.n_predict is not None:  # llama-server's own name says more than OpenAI's
        body = {**body, "max_completion_tokens": None, "max_tokens": None, "n_predict": given.n_predict or 1}
    n_logprobs = given.n_probs or (0 if given.return_tokens else None)  # tokens come with their log-probabilities
    wanted = read_text(service, body, made, n_logprobs)
    return wanted, _NativeShape(service.loaded, wanted, given)


class _NativeShape(Shape):
    """The shape of /completion. Its streams have no mark of the end."""

    def __init__(self, loaded: LoadedService, wanted: Wanted, given: _NativeFields) -> None:
        self._name = loaded.name
        self._ctx_size = loaded.model.engine.ctx_size
        self._token_bytes = loaded.model.llama_model.token_bytes
        self._wanted = wanted
        self._given = given

    def whole(self, answers: Sequence[Answer]) -> Any:
        several = [{**self._piece(answer), **self._ending(answer)} for answer in answers]
        return several[0] if len(several) == 1 else several

    def added(self, addition: Answer) -> Iterator[bytes]:
        if addition.deltas or addition.logprobs:
            yield frame({**self._piece(addition), "stop": False})
        if addition.completion:
            yield frame({**self._piece(Answer(addition.index)), **self._ending(addition)})

    def _piece(self, answer: Answer) -> Json:
        given = self._given
        is_silent = given.n_predict == 0  # the prompt is read, and nothing is told of what was written for that
        logprobs: Sequence[TokenLogprob] = () if is_silent else answer.logprobs
        told: Json = {
            "index": answer.index,
            "content": "" if is_silent else answer.content,
            "tokens": [written.token for written in logprobs] if given.return_tokens else [],
            "id_slot": -1,
        }
        if given.n_probs:
            told["completion_probabilities"] = logprobs_json(logprobs, self._token_bytes)
        return told

    def _ending(self, answer: Answer) -> Json:
        done, stop = answer.ended, answer.stopped_by
        settings = Defaults(done.request, done.request.sampling.seed).settings()
        prompt = self._wanted.prompts[answer.index // self._wanted.sending.n]
        return {
            "stop": True,
            "model": self._name,
            "prompt": prompt.text or "",
            "generation_settings": settings | {"n_ctx": self._ctx_size, "n_predict": settings["max_tokens"]},
            "tokens_predicted": len(done.token_ids),
            "tokens_evaluated": done.statistics.prompt_tokens,
            "tokens_cached": cached_tokens(done.statistics),
            "has_new_line": "\n" in done.text,
            "truncated": done.finish_reason == "context",
            "stop_type": "word" if stop else "eos" if answer.finish == "stop" else "limit",
            "stopping_word": stop or "",
            "timings": timings_json(done),
        }


_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"  # Prometheus'
_MOST_TOKENS = 2**21  # to be turned into text at once


async def apply_template(service: Service, request: Request) -> Response:
    """The text that a conversation is for the model. Raises SpecrunError and ApiError."""
    wanted = await in_thread(service, read_chat, await read_json(request))
    return JSONResponse({"prompt": wanted.prompts[0].text})


async def slots(service: Service, request: Request) -> Response:
    """The slots in which answers are written. With `fail_on_no_slot`, an error if all of them are in use."""
    n_used, model = service.queue.n_running, service.loaded.model
    n_slots = len(model.slots.engines)
    if request.query_params.get("fail_on_no_slot") and n_used >= n_slots:
        raise ApiError("all slots are in use", UNAVAILABLE)
    params, drafts = service.defaults.settings(), any(plan.drafts for plan in model.plans.candidates)
    facts = {"n_ctx": model.engine.ctx_size, "speculative": drafts, "params": params}
    return JSONResponse([{"id": i, **facts, "is_processing": i < n_used} for i in range(n_slots)])


async def health(service: Service, _request: Request) -> Response:
    service.check_loaded()
    return JSONResponse({"status": "ok"})


async def models(service: Service, _request: Request) -> Response:
    """The model that is served. `models` is a copy for clients that ask as they ask ollama."""
    entry = _entry(service)
    copy = {"name": entry["id"], "model": entry["id"], "capabilities": entry["capabilities"]}
    return JSONResponse({"object": "list", "data": [entry], "models": [{**copy, "details": {"format": "gguf"}}]})


async def model(service: Service, request: Request) -> Response:
    """The same model by its name. Raises ApiError for another name."""
    entry, name = _entry(service), request.path_params["name"]
    if name != entry["id"]:
        raise ApiError(f"there is no model {name}; this server has {entry['id']}", NOT_FOUND, code="model_not_found")
    return JSONResponse(entry)


def _entry(service: Service) -> Json:
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
            "total_slots": len(loaded.model.slots.engines),
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
    numbers = [(f"{name}_total", t.sums[one], what) for one, (name, what) in SUMS.items()]
    numbers += [
        ("prompt_tokens_cached_total", t.prompt_tokens_cached, "Tokens of prompts that were in the cache."),
        ("shared_passes_total", t.shared_passes, "Target passes that several answers shared."),
        (
            "tokens_per_pass",
            (t.sums["passes"] + t.sums["drafted_accepted"]) / max(t.sums["passes"], 1),
            "Mean accepted length.",
        ),
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
