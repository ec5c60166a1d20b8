"""Many requests: their order, a bounded queue, clients that go away, and the end of the server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest

from specrun.speculation.method import OFF
from tests.serving.running import CHAT, COMPLETIONS, Server, content, messages, running
from tests.waiting import wait_until

LONG = {"prompt": "la ", "max_tokens": 16_000}
SHORT = {"prompt": "la ", "max_tokens": 4}
SHORT_TEXT = "la lo la lo "


@pytest.fixture(scope="module")
def busy(endless: Path) -> Iterator[Server]:
    """A server whose model writes for many seconds, and where one request may wait."""
    with running(endless, plan=OFF.plan(), ctx_size=16_384, most_waiting=1) as server:
        yield server


def begin(server: Server, stack: ExitStack) -> None:
    """Let a long answer be streamed, until the stack is closed. Its first piece has come."""
    client = stack.enter_context(httpx2.Client(base_url=server.url, timeout=60, trust_env=False))
    response = stack.enter_context(client.stream("POST", COMPLETIONS, json={**LONG, "stream": True}))
    lines = response.iter_lines()
    stack.callback(lines.close)  # without a reference, it would be closed now, and the stream with it
    while not next(lines).startswith("data: "):
        pass


def in_background(server: Server, stack: ExitStack, body: dict[str, Any]) -> Future[dict[str, Any]]:
    """A request that waits in the queue."""
    n_before = server.service.queue.n_waiting
    executor = stack.enter_context(ThreadPoolExecutor())
    future = executor.submit(server.post, COMPLETIONS, body)
    wait_until(lambda: server.service.queue.n_waiting > n_before, "the request is in the queue")
    return future


def test_a_client_that_goes_away_makes_room_for_the_next(busy: Server) -> None:
    n_before = busy.answers.get("interrupted", 0)
    with ExitStack() as others, ExitStack() as first:
        begin(busy, first)
        waiting = in_background(busy, others, SHORT)
        assert not waiting.done()
        first.close()
        assert waiting.result()["choices"][0]["text"] == SHORT_TEXT
    assert busy.answers["interrupted"] == n_before + 1
    assert busy.service.totals.sums["completion_tokens"] < 16_000


def test_a_client_that_goes_away_without_a_stream_is_noticed_too(busy: Server) -> None:
    n_before = busy.answers.get("interrupted", 0)
    with pytest.raises(httpx2.ReadTimeout):
        httpx2.post(f"{busy.url}{COMPLETIONS}", json=LONG, timeout=0.2, trust_env=False)
    wait_until(lambda: busy.answers.get("interrupted", 0) > n_before, "the answer has ended")
    busy.wait_until_idle()


def test_a_full_queue_refuses_and_says_when_to_come_back(busy: Server) -> None:
    with ExitStack() as others, ExitStack() as first:
        begin(busy, first)
        waiting = in_background(busy, others, SHORT)
        n_refused = busy.service.queue.n_refused
        response = busy.client.post(COMPLETIONS, json=SHORT)
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) >= 1
        assert response.json()["error"]["type"] == "unavailable_error"
        assert busy.service.queue.n_refused == n_refused + 1
        first.close()
        assert waiting.result()["choices"][0]["text"] == SHORT_TEXT
    assert busy.post(COMPLETIONS, SHORT)["choices"][0]["text"] == SHORT_TEXT


@pytest.mark.slow
def test_who_goes_away_while_waiting_leaves_the_queue(busy: Server) -> None:
    with ExitStack() as first:
        begin(busy, first)
        with pytest.raises(httpx2.ReadTimeout):
            httpx2.post(f"{busy.url}{COMPLETIONS}", json=SHORT, timeout=0.2, trust_env=False)
        wait_until(lambda: busy.service.queue.n_waiting == 0, "the queue is empty")
    busy.wait_until_idle()


def test_a_waiting_stream_is_kept_alive(busy: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specrun.serving.answers.KEEP_ALIVE_S", 0.01)
    with ExitStack() as first:
        begin(busy, first)
        with busy.client.stream("POST", COMPLETIONS, json={**SHORT, "stream": True}) as response:
            lines = response.iter_lines()
            assert next(lines) == ": keep-alive"
            first.close()
            pieces = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert "".join(piece["choices"][0]["text"] for piece in pieces) == SHORT_TEXT


@pytest.mark.slow
def test_the_end_of_the_server_ends_answers_with_a_reason(endless: Path) -> None:
    lines: list[str] = []
    with ExitStack() as stack:
        with running(endless, plan=OFF.plan(), ctx_size=16_384) as server:
            client = stack.enter_context(httpx2.Client(base_url=server.url, timeout=60, trust_env=False))
            response = stack.enter_context(client.stream("POST", COMPLETIONS, json={**LONG, "stream": True}))
            iterator = response.iter_lines()
            lines += [next(iterator)]
            reader = threading.Thread(target=lambda: lines.extend(iterator))
            reader.start()
        reader.join()
    data = [line[6:] for line in lines if line]
    assert data[-1] == "[DONE]"
    assert json.loads(data[-2])["choices"][0]["finish_reason"] == "length"
    assert server.answers == {"interrupted": 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, LONG),
        (COMPLETIONS, {**LONG, "n": 2}),
        ("/v1/messages", {"max_tokens": 16_000, "messages": messages("x")}),
        ("/v1/responses", {"max_output_tokens": 16_000, "input": "x"}),
        # Their prompts are still being read.
        (COMPLETIONS, {"prompt": "x" * 16_000, "stream": True}),
        ("/v1/messages", {"max_tokens": 9, "messages": messages("x" * 16_000), "stream": True}),
    ],
    ids=["whole", "two", "message", "response", "stream", "streamed message"],
)
def test_what_was_not_begun_when_the_server_stops_is_answered_with_503(
    endless: Path, path: str, body: dict[str, Any]
) -> None:
    with ExitStack() as stack:
        with running(endless, plan=OFF.plan(), ctx_size=16_384) as server:
            client = stack.enter_context(httpx2.Client(base_url=server.url, timeout=60, trust_env=False))
            executor = stack.enter_context(ThreadPoolExecutor())
            future = executor.submit(client.post, path, json=body)
            wait_until(lambda: server.service.queue.n_running > 0, "the answer is being written")
        response = future.result()
    assert response.status_code == 503, response.text
    assert "stopping" in response.json()["error"]["message"]


@pytest.mark.slow
def test_everybody_gets_the_text_that_he_would_get_alone(server: Server) -> None:
    bodies = [
        {"messages": messages(f"def f{i}(x):"), "seed": i, "temperature": 0.2 * i, "max_tokens": 40} for i in range(6)
    ]
    alone = [content(server.post(CHAT, body)) for body in bodies]
    with ThreadPoolExecutor(6) as executor:
        together = list(executor.map(lambda body: content(server.post(CHAT, body)), bodies))
    assert together == alone
