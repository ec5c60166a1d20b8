"""A real server on a free port, whose model is written with in a thread of this process."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2

from specrun.catalog import embedded
from specrun.decoding.generation import Request
from specrun.decoding.together import Conversations
from specrun.llama_settings import LlamaSettings
from specrun.loading.model import Model
from specrun.loading.run_options import RunOptions
from specrun.sampling import SamplingParameters
from specrun.serving.app import HttpServer, listening_socket, make_app, url
from specrun.serving.prompts import Prompts
from specrun.serving.refusals import Access
from specrun.serving.request_fields import Defaults
from specrun.serving.service import JobQueue, LoadedService, Service
from specrun.serving.worker import Worker
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF, Plan
from tests.waiting import TIMEOUT_S, wait_until

NAME = "small"
GREEDY = Defaults(Request(sampling=SamplingParameters(temperature=0), max_tokens=24), seed=0)
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
Json = dict[str, Any]


@dataclass
class Server:
    """The server, and a client of it.

    failures: what went wrong in the model's thread.
    """

    url: str
    service: Service
    conversations: Conversations
    client: httpx2.Client
    failures: list[Exception]

    def post(self, path: str, body: Json) -> Json:
        """The answer to a request that must succeed."""
        response = self.client.post(path, json=body)
        assert response.status_code == 200, response.text
        return dict(response.json())

    def chat(self, *texts: str, **fields: Any) -> Json:
        """The answer to a conversation, whose user and assistant take turns."""
        return self.post(CHAT, {"messages": messages(*texts), **fields})

    def refused(self, path: str, body: Any) -> tuple[int, Json]:
        """Status and error object of a request that must fail."""
        response = self.client.post(path, json=body)
        assert response.status_code >= 400, response.text
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return response.status_code, error

    def stream(self, path: str, body: Json) -> list[Json]:
        """The objects of a stream that must succeed, without the final [DONE]."""
        with self.client.stream("POST", path, json={**body, "stream": True}) as response:
            assert response.status_code == 200
            assert response.headers["content-type"].startswith("text/event-stream")
            lines = [line for line in response.iter_lines() if line]
        assert lines.pop() == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines]

    @property
    def answers(self) -> dict[str, int]:
        """Why answers ended -> number."""
        return self.service.totals.answers

    def wait_until_idle(self) -> None:
        """Return once no answer is being written."""
        wait_until(lambda: not self.service.queue.n_running, "the server is idle")


def messages(*texts: str) -> list[Json]:
    """A conversation, whose user and assistant take turns."""
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


def content(answer: Json, index: int = 0) -> str:
    """The text of an answer."""
    return str(answer["choices"][index]["message"]["content"])


def streamed(chunks: list[Json], index: int = 0) -> str:
    """The text of a streamed message."""
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


@contextmanager
def running(
    target: Path = embedded.TARGET,
    *,
    plan: Plan | None = None,
    ctx_size: int = 1024,
    most_waiting: int = 8,
    cache_bytes: int = 1 << 30,
    access: Access | None = None,
    defaults: Defaults = GREEDY,
    parallel: int = 1,
    exact: bool = False,
    prompt_pass: int | None = None,
    is_auto: bool = False,
    gpu_layers: int | None = None,
    draft_gpu_layers: int | None = None,
    keeps_prompts: bool = False,
) -> Iterator[Server]:
    """A server of `target`, with the embedded draft if `plan` wants one, on one thread.

    keeps_prompts: whether it keeps them on disk, as if reading a token took a second.
    """
    one_thread = LlamaSettings(threads=1, gpu_layers=gpu_layers)
    draft_settings = LlamaSettings(threads=1, flash_attn="on", gpu_layers=draft_gpu_layers)
    plans = (plan or SPECEXEC.plan(16, 6),)
    plans = (*plans, OFF.plan()) if is_auto else plans
    options = RunOptions(
        target,
        embedded.DRAFT,
        plans,
        ctx_size=ctx_size,
        settings=replace(one_thread, ubatch_size=prompt_pass),
        draft_settings=draft_settings,
        parallel=parallel,
        exact=exact,
    )
    service = Service(JobQueue(most_waiting), defaults)
    failures: list[Exception] = []
    stop = threading.Event()
    with (
        listening_socket("127.0.0.1", 0) as bound,
        HttpServer(make_app(service, access or Access(), failures.append), bound) as http,
        Model(options) as model,
        # Without `verify`, it would read all certificates that this machine trusts, which takes longer than a request.
        httpx2.Client(base_url=url("127.0.0.1", bound), timeout=TIMEOUT_S, trust_env=False, verify=False) as client,
    ):
        if keeps_prompts:
            model.keep_prompts()
            assert model.prompt_states
            model.prompt_states.has_read(1000, 1000.0)
        service.begin(LoadedService(model, Prompts(model), NAME))
        conversations = Conversations(model.slots.engines, cache_bytes, model.prompt_states)
        worker = Worker(service, conversations, failures.append)
        thread = threading.Thread(target=worker.run, args=[stop.is_set])
        thread.start()
        try:
            yield Server(url("127.0.0.1", bound), service, conversations, client, failures)
        finally:
            client.close()
            stop.set()
            thread.join()
            http.stop()
    assert not failures
