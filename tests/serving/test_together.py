"""Several answers at a time, in shared passes: everybody gets the text that he would get alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest

from specrun.decoding.passes import Passes
from specrun.serving.worker import Writing
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.cost_aware import MERGED
from specrun.speculation.drafters.guessed import DRAFTLESS
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF
from tests.hybrids import random_recurrent
from tests.models import random_gemma3
from tests.serving.running import CHAT, COMPLETIONS, Json, Server, content, messages, running
from tests.waiting import wait_until

PLANS = [
    *(pytest.param(plan, marks=pytest.mark.slow) for plan in (OFF.plan(), CHAIN.plan(depth=4))),
    SPECEXEC.plan(16, 6),
]
STARTS = ("def f(x):", "import os\n\ndef walk(path):", "class Tree:\n    def add(self, x):", "x = [")


def bodies() -> list[Json]:
    """Requests of all kinds, which end at different times."""
    fields: list[Json] = [
        {"temperature": 0},
        {"temperature": 0.8, "seed": 1},
        {"temperature": 1.2, "seed": 2, "top_k": 0, "top_p": 1, "min_p": 0, "repeat_penalty": 1.1},
        {"temperature": 0.8, "seed": 3, "stop": ["\n\n"]},
    ]
    talks = [messages(start, "    pass", "    return") if i == 2 else messages(start) for i, start in enumerate(STARTS)]
    return [
        {"messages": talk, "max_tokens": 30 + 7 * i, "logprobs": True, **field}
        for i, (talk, field) in enumerate([*zip(talks, fields, strict=True), *zip(talks, fields[::-1], strict=True)])
    ]


def at_once(server: Server, requests: list[Json], n_clients: int = 4) -> list[Json]:
    with ThreadPoolExecutor(n_clients) as executor:
        return list(executor.map(lambda body: server.post(CHAT, body), requests))


def n_shared(server: Server) -> int:
    return server.service.totals.shared_passes


def stream(server: Server, stack: ExitStack, body: Json, path: str = CHAT) -> Iterator[str]:
    """The lines of a stream, which is closed with the stack. The first piece has come."""
    client = stack.enter_context(httpx2.Client(base_url=server.url, timeout=60, trust_env=False))
    response = stack.enter_context(client.stream("POST", path, json={**body, "stream": True}))
    lines = response.iter_lines()
    stack.callback(lines.close)
    while not next(lines).startswith("data: "):
        pass
    return lines


@pytest.fixture(scope="module")
def plain() -> list[Any]:
    """What plain decoding writes, one after the other."""
    with running(plan=OFF.plan()) as server:
        return [server.post(CHAT, body)["choices"] for body in bodies()]


@pytest.fixture(scope="module", params=PLANS, ids=str)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with running(plan=request.param, parallel=4) as server:
        yield server


@pytest.mark.slow
def test_four_clients_get_the_texts_of_plain_decoding(server: Server, plain: list[Any]) -> None:
    assert [server.post(CHAT, body)["choices"] for body in bodies()[:2]] == plain[:2]
    assert n_shared(server) == 0
    for _ in range(2):
        answers = at_once(server, bodies())
        assert [answer["choices"] for answer in answers] == plain
    assert n_shared(server) > 20
    if server.service.loaded.model.plans.candidates[0].drafts:
        assert sum(answer["timings"]["draft_n_accepted"] for answer in answers) > 50


@pytest.mark.slow
def test_so_do_eight(plain: list[Any]) -> None:
    """The further seven have few leaf paths each, and the rows of a pass are for the trees of all."""
    with running(plan=SPECEXEC.plan(32, 6), parallel=8) as server:
        slots = [engine.target.max_leaves for engine in server.service.loaded.model.slots.engines]
        assert slots == [32, *[9] * 7]
        for _ in range(2):
            assert [answer["choices"] for answer in at_once(server, bodies(), 8)] == plain
        assert n_shared(server) > 20


@pytest.mark.slow
def test_so_they_do_where_costs_and_what_is_seen_size_the_trees(plain: list[Any]) -> None:
    with running(plan=MERGED.plan(24, 6), is_auto=True, parallel=4) as server:
        answers = [answer for _ in range(3) for answer in at_once(server, bodies())]
        assert [answer["choices"] for answer in answers] == 3 * plain
        assert n_shared(server) > 20
        assert sum(answer["timings"]["draft_n_accepted"] for answer in answers) > 0


@pytest.mark.slow
def test_a_client_that_goes_away_changes_nothing_for_the_others(server: Server, plain: list[Any]) -> None:
    n_before = server.answers.get("interrupted", 0)
    with ThreadPoolExecutor(3) as executor:
        others = [executor.submit(server.post, CHAT, body) for body in bodies()[4:7]]
        with ExitStack() as stack:
            stream(server, stack, {"messages": messages("def g(y):"), "max_tokens": 800, "temperature": 0.8})
        assert [other.result()["choices"] for other in others] == plain[4:7]
    wait_until(lambda: server.answers.get("interrupted", 0) == n_before + 1, "its answer has ended")
    assert server.post(CHAT, bodies()[0])["choices"] == plain[0]


@pytest.mark.slow
def test_conversations_at_the_same_time_come_back(server: Server) -> None:
    """Six conversations in four slots, three turns each: what is in no slot any more was copied."""
    begin = "(a, b):\n    names = [a, b]\n    for name in names:\n        print(name)"
    talks = [[f"def f{i}{begin}"] for i in range(6)]
    with running(plan=OFF.plan(), cache_bytes=0) as alone:
        for turn in range(3):
            requests = [
                {"messages": messages(*talk), "temperature": 0.8, "seed": turn, "max_tokens": 24} for talk in talks
            ]
            answers = at_once(server, requests, 6)
            assert [content(answer) for answer in answers] == [content(alone.post(CHAT, body)) for body in requests]
            for talk, answer in zip(talks, answers, strict=True):
                details = answer["usage"]["prompt_tokens_details"]
                assert turn == 0 or answer["usage"]["prompt_tokens"] - details["cached_tokens"] <= 20
                talk += [content(answer), "    and then"]


@pytest.mark.slow
def test_a_long_prompt_is_read_between_the_passes_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    long = {"messages": messages("".join(f"def f{i}(x):\n    return x + {i}\n" for i in range(40))), "max_tokens": 8}
    writing = {"messages": messages("import os"), "max_tokens": 400, "temperature": 0.8, "ignore_eos": True}
    with running(plan=OFF.plan(), prompt_pass=64) as server:
        expected = [content(server.post(CHAT, body)) for body in (long, writing)]
    events: list[str] = []
    with running(plan=OFF.plan(), prompt_pass=64, parallel=2) as server, ThreadPoolExecutor(1) as executor:
        read, write = Passes.read, Passes.next_pass
        monkeypatch.setattr(Passes, "read", lambda own, all_: (events.append("read"), read(own, all_)))
        monkeypatch.setattr(
            Passes,
            "next_pass",
            lambda own, all_, readers=(): (events.append("both" if readers else "write"), write(own, all_, readers))[1],
        )
        other = executor.submit(server.post, CHAT, writing)
        wait_until(lambda: "write" in events, "the other answer is written")
        answers = [server.post(CHAT, long), other.result()]
    assert [content(answer) for answer in answers] == expected
    assert events.count("both") >= 4, "each chunk of the prompt shares a pass with the other text"
    assert "read read" not in " ".join(events)


@pytest.mark.slow
def test_answers_for_which_there_is_no_room_wait_and_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three answers that go on until the context of one is full."""
    requests = [
        {"messages": messages(start), "temperature": 0.8, "seed": i, "ignore_eos": True, "max_tokens": 250}
        for i, start in enumerate(STARTS)
    ]
    with running(plan=OFF.plan(), ctx_size=300) as server:
        expected = [content(server.post(CHAT, body)) for body in requests]
    monkeypatch.setattr("specrun.decoding.together._FIRST_TOKENS", 20)
    waits: list[Any] = []
    wait: Callable[[Writing], None] = Writing.wait
    monkeypatch.setattr(Writing, "wait", lambda one: (waits.append(one), wait(one)))
    with running(plan=CHAIN.plan(depth=3), ctx_size=300, parallel=3) as server:
        assert [content(answer) for answer in at_once(server, requests)] == expected
    assert waits


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["qwen35", "gemma3"])
def test_conversations_come_back_where_states_or_windows_are_copied(kind: str, tmp_path: Path) -> None:
    """Four conversations in two slots, three turns each, one of which goes back; a client goes away meanwhile."""
    path = tmp_path / "model.gguf"
    target = random_gemma3(path, window=24) if kind == "gemma3" else random_recurrent(path, kind)
    talks = [[f"def f{i}(a, b):\n    return a"] for i in range(4)]
    with running(target, plan=OFF.plan(), ctx_size=512, cache_bytes=0) as alone, ExitStack() as stack:
        server = stack.enter_context(running(target, plan=DRAFTLESS.plan(8), ctx_size=512, parallel=2))
        for turn in range(3):
            requests = [
                {"messages": messages(*talk), "temperature": 0.8, "seed": turn, "max_tokens": 24, "ignore_eos": True}
                for talk in talks
            ]
            with ExitStack() as leaving:
                stream(server, leaving, {"messages": messages("x"), "max_tokens": 300, "ignore_eos": True})
            answers = at_once(server, requests, 4)
            assert [content(answer) for answer in answers] == [content(alone.post(CHAT, body)) for body in requests]
            for i, (talk, answer) in enumerate(zip(talks, answers, strict=True)):
                talk[:] = talk[:1] if i == turn == 1 else [*talk, content(answer), "and then"]
        assert n_shared(server) > 8


def test_jobs_beyond_the_slots_wait_in_a_bounded_queue(endless: Path) -> None:
    body = {"prompt": "la ", "max_tokens": 4000}
    with running(endless, plan=OFF.plan(), ctx_size=16_384, most_waiting=1, parallel=2) as server, ExitStack() as stack:
        first = stack.enter_context(ExitStack())
        stream(server, first, body, COMPLETIONS)
        stream(server, stack, body, COMPLETIONS)
        assert server.service.queue.n_running == 2
        with ThreadPoolExecutor(1) as executor:
            waiting = executor.submit(server.post, COMPLETIONS, {**body, "max_tokens": 4})
            wait_until(lambda: server.service.queue.n_waiting == 1, "one waits")
            assert server.client.post(COMPLETIONS, json=body).status_code == 503
            first.close()
            assert waiting.result()["choices"][0]["text"] == "la lo la lo "
