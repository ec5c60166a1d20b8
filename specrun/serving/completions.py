"""POST /v1/completions: texts that continue prompts, in OpenAI's older shape."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from specrun.engine.completion import Completion
from specrun.sampling.logprobs import TokenLogprob
from specrun.serving.answer_reader import AnswerReader, FinishName
from specrun.serving.api_error import ApiError
from specrun.serving.bodies import read_json
from specrun.serving.chat_fields import Sending, read_sending
from specrun.serving.event_stream import DONE, KEEP_ALIVE, KEEP_ALIVE_S, frame, response_of
from specrun.serving.fields import Fields, is_integer
from specrun.serving.job import Job
from specrun.serving.openai_shapes import TokenBytes, completion_logprobs, head
from specrun.serving.prompts import Prompt, Prompts
from specrun.serving.request_fields import MOST_LOGPROBS, read_request
from specrun.serving.service import Service
from specrun.serving.steps import Step, steps
from specrun.serving.usage import timings, usage

MOST_PROMPTS = 64


class Completions:
    """The endpoint."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def answer(self, request: Request) -> Response:
        """Answer a request. Raises ApiError."""
        loaded = self._service.loaded
        model = loaded.model.llama_model
        fields = Fields(await read_json(request))
        asked = replace(
            read_request(fields, self._service.defaults, model.n_vocab),
            logprobs=fields.integer("logprobs", 0, MOST_LOGPROBS),
        )
        sending = read_sending(fields)
        _refuse_unknown_ways(fields)
        prompts = await run_in_threadpool(_prompts, fields, loaded.prompts, sending.anew)
        job = self._service.submit(prompts, asked, sending.n, sending.anew)
        answers = _Answers(sending, job, loaded.name, model.token_bytes)
        return await response_of(request, job, answers, sending.stream)


def _refuse_unknown_ways(fields: Fields) -> None:
    """Refuse what would change the answer and cannot be done."""
    if fields.flag("echo"):
        fields.refuse("echo", "is not possible; put the prompt before the answer yourself")
    if fields.text("suffix"):
        fields.refuse("suffix", "is not possible: the model only continues texts")
    best_of = fields.integer("best_of", 1, MOST_PROMPTS)
    if best_of and best_of > (fields.integer("n", 1, MOST_PROMPTS) or 1):
        fields.refuse("best_of", "may not be more than n: all answers that are written are sent")


def _prompts(fields: Fields, prompts: Prompts, anew: bool) -> list[Prompt]:
    """The prompt, or several: each is a text or a list of token ids."""
    given = fields.raw("prompt")
    if isinstance(given, str) or (isinstance(given, list) and given and is_integer(given[0])):
        given = [given]
    if not isinstance(given, list) or not 1 <= len(given) <= MOST_PROMPTS:
        fields.refuse("prompt", f"must be a string, a list of token ids, or a list of at most {MOST_PROMPTS} of them")
    return [_prompt(fields, one, prompts, anew) for one in given]


def _prompt(fields: Fields, given: Any, prompts: Prompts, anew: bool) -> Prompt:
    if isinstance(given, str):
        return prompts.of_text(given, anew)
    if not isinstance(given, list) or not all(map(is_integer, given)):
        fields.refuse("prompt", "must be a string or a list of token ids")
    return prompts.of_tokens(given)


class _Answers:
    """The answers to one request, in one of the two shapes."""

    def __init__(self, sending: Sending, job: Job, model_name: str, token_bytes: TokenBytes) -> None:
        self._sending = sending
        self._job = job
        self._token_bytes = token_bytes
        self._head = {"object": "text_completion", **head("cmpl", model_name)}

    async def whole(self) -> dict[str, Any]:
        """All answers as one object."""
        text = ""
        logprobs: list[TokenLogprob] = []
        choices: list[dict[str, Any]] = []
        completions: list[Completion] = []
        async for step in steps(self._job, AnswerReader):
            assert step
            text += _text(step)
            logprobs += step.logprobs
            if step.ending:
                choices.append(self._choice(step.index, text, 0, logprobs, step.ending.name))
                completions.append(step.ending.completion)
                text, logprobs = "", []
        return {
            **self._head,
            "choices": choices,
            "usage": usage(self._job, completions),
            "timings": timings(completions[-1]),
        }

    async def frames(self) -> AsyncIterator[bytes]:
        """The answers as server-sent events."""
        completions: list[Completion] = []
        begin = 0  # of the next piece in its answer, in characters
        try:
            async for step in steps(self._job, AnswerReader, KEEP_ALIVE_S):
                if step is None:
                    yield KEEP_ALIVE
                    continue
                text = _text(step)
                finish = step.ending.name if step.ending else None
                further = {}
                if step.ending:
                    completions.append(step.ending.completion)
                    further = {"timings": timings(step.ending.completion)}
                choice = self._choice(step.index, text, begin, step.logprobs, finish)
                yield frame({**self._head, "choices": [choice], **further})
                begin = 0 if step.ending else begin + len(text)
        except ApiError as error:
            yield frame(error.as_json())
            return
        if self._sending.include_usage:
            yield frame({**self._head, "choices": [], "usage": usage(self._job, completions)})
        yield DONE

    def _choice(
        self, index: int, text: str, begin: int, logprobs: Sequence[TokenLogprob], finish: FinishName | None
    ) -> dict[str, Any]:
        told = completion_logprobs(logprobs, begin, self._token_bytes) if logprobs else None
        return {"text": text, "index": index, "logprobs": told, "finish_reason": finish}


def _text(step: Step) -> str:
    return "".join(delta.content for delta in step.deltas)
