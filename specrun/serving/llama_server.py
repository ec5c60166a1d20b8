"""llama-server's own addresses: POST /completion, /infill and /apply-template, GET /slots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from specrun.sampling.sampler import TokenLogprob
from specrun.serving.answers import Answer, Shape, frame
from specrun.serving.api_error import UNAVAILABLE, ApiError
from specrun.serving.bodies import Fields, Integer, parsed, read_json
from specrun.serving.endpoint import Wanted, answered, in_thread
from specrun.serving.openai_endpoints import TextPrompt, read_chat, read_text, text_prompts
from specrun.serving.openai_shapes import logprobs_json, timings_json
from specrun.serving.prompts import Prompt
from specrun.serving.request_fields import MOST_LOGPROBS, Defaults, Sending
from specrun.serving.service import LoadedService, Service, cached_tokens

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


@dataclass(frozen=True)
class _NativeWanted(Wanted):
    """What is asked here beyond what is asked elsewhere. only_reads: whether the prompt is read and nothing written."""

    given: _NativeFields = field(default_factory=_NativeFields)

    @property
    def only_reads(self) -> bool:
        return self.given.n_predict == 0


async def completion(service: Service, request: Request) -> Response:
    return await answered(service, request, _read_completion, _NativeShape)


async def infill(service: Service, request: Request) -> Response:
    return await answered(service, request, _read_infill, _NativeShape)


async def apply_template(service: Service, request: Request) -> Response:
    """The text that a conversation is for the model. Raises SpecrunError and ApiError."""
    wanted = await in_thread(service, read_chat, await read_json(request))
    return JSONResponse({"prompt": wanted.prompts[0].text})


async def slots(service: Service, request: Request) -> Response:
    """The lanes in which answers are written. With `fail_on_no_slot`, an error if all of them are in use."""
    n_used, model = service.queue.n_running, service.loaded.model
    n_lanes = len(model.lanes.engines)
    if request.query_params.get("fail_on_no_slot") and n_used >= n_lanes:
        raise ApiError("all slots are in use", UNAVAILABLE)
    params, drafts = service.defaults.settings(), any(plan.drafts for plan in model.plans.candidates)
    facts = {"n_ctx": model.engine.ctx_size, "speculative": drafts, "params": params}
    return JSONResponse([{"id": i, **facts, "is_processing": i < n_used} for i in range(n_lanes)])


def _read_completion(service: Service, body: Mapping[str, Any]) -> _NativeWanted:
    given, sending = parsed(_CompletionFields, body), parsed(Sending, body)
    made = text_prompts(service.loaded.prompts, given.prompt, not sending.cache_prompt)
    return _wanted(service, body, made, sending, given)


def _read_infill(service: Service, body: Mapping[str, Any]) -> _NativeWanted:
    given = parsed(_InfillFields, body)
    files = [(file.filename, file.text) for file in given.input_extra]
    texts = given.input_prefix, given.input_suffix
    made = service.loaded.prompts.of_gap(*texts, files, given.prompt, param="input_suffix")
    return _wanted(service, body, [made], parsed(Sending, body), given)


def _wanted(
    service: Service, body: Mapping[str, Any], made: Sequence[Prompt], sending: Sending, given: _NativeFields
) -> _NativeWanted:
    # Editors have a prompt read in advance. A token has to be written for that, and is not sent.
    if given.n_predict is not None:  # llama-server's own name says more than OpenAI's
        body = {**body, "max_completion_tokens": None, "max_tokens": None, "n_predict": given.n_predict or 1}
    wanted = read_text(service, body, made, sending)
    n_logprobs = given.n_probs or (0 if given.return_tokens else None)  # tokens come with their log-probabilities
    request = replace(wanted.request, logprobs=n_logprobs)
    return _NativeWanted(wanted.prompts, request, wanted.new_reader, sending, given)


class _NativeShape(Shape):
    """The shape of /completion. Its streams have no mark of the end."""

    def __init__(self, loaded: LoadedService, wanted: _NativeWanted) -> None:
        self._name = loaded.name
        self._ctx_size = loaded.model.engine.ctx_size
        self._token_bytes = loaded.model.llama_model.token_bytes
        self._wanted = wanted

    def whole(self, answers: Sequence[Answer]) -> Any:
        several = [{**self._piece(answer), **self._ending(answer)} for answer in answers]
        return several[0] if len(several) == 1 else several

    def added(self, addition: Answer) -> Iterator[bytes]:
        if addition.deltas or addition.logprobs:
            yield frame({**self._piece(addition), "stop": False})
        if addition.completion:
            yield frame({**self._piece(Answer(addition.index)), **self._ending(addition)})

    def failure(self, error: ApiError) -> bytes:
        return frame(error.as_openai())

    def _piece(self, answer: Answer) -> dict[str, Any]:
        given, is_silent = self._wanted.given, self._wanted.only_reads
        logprobs: Sequence[TokenLogprob] = () if is_silent else answer.logprobs
        told: dict[str, Any] = {
            "index": answer.index,
            "content": "" if is_silent else "".join(delta.content for delta in answer.deltas),
            "tokens": [written.token for written in logprobs] if given.return_tokens else [],
            "id_slot": -1,
        }
        if given.n_probs:
            told["completion_probabilities"] = logprobs_json(logprobs, self._token_bytes)
        return told

    def _ending(self, answer: Answer) -> dict[str, Any]:
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
