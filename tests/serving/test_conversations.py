"""Several conversations in turn keep their prefixes in the cache, and their texts."""

from __future__ import annotations

from typing import Any

import pytest

from specrun.decoding import prompt_folder, prompt_states
from specrun.decoding.together import Conversations
from specrun.speculation.drafters.specexec import SPECEXEC
from tests.serving.running import Json, Server, content, messages, running

FIRST = "import os\n\ndef walk(path, names, depth):\n    found = []\n    for name in names:\n"
SECOND = "class Tree:\n    def __init__(self, left, right, value):\n        self.left = left\n"


def cached(answer: Json) -> int:
    """Tokens of the prompt that were in the cache."""
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def n_read(answer: Json) -> int:
    """Tokens of the prompt that were not."""
    return int(answer["usage"]["prompt_tokens"]) - cached(answer)


def two_in_turn(server: Server, n_turns: int = 3) -> list[list[Json]]:
    """Two conversations, of which each has a turn after the other."""
    talks = [[FIRST], [SECOND]]
    answers: list[list[Json]] = [[], []]
    for i in range(n_turns):
        for talk, given in zip(talks, answers, strict=True):
            given.append(server.chat(*talk, temperature=0.8, seed=i, max_tokens=40))
            talk += [content(given[-1]), f"    # and now {i}"]
    return answers


@pytest.mark.slow
def test_a_conversation_that_goes_on_reads_only_what_is_new(server: Server) -> None:
    first = server.chat(FIRST, max_tokens=40)
    second = server.chat(FIRST, content(first), "    return", max_tokens=8)
    assert cached(second) >= first["usage"]["prompt_tokens"] + 40 - 1
    assert n_read(second) <= 12


@pytest.mark.slow
def test_an_answer_keeps_its_tokens_though_it_would_be_split_differently(server: Server) -> None:
    first = server.chat(FIRST, temperature=1.5, seed=7, top_k=0, min_p=0, top_p=1, max_tokens=60)
    texts = [FIRST, content(first), "x"]
    prompt = server.service.loaded.prompts.of_messages([*messages(*texts)])  # type: ignore[list-item]
    split_anew = server.service.loaded.model.llama_model.tokenize(prompt.text or "", add_special=False)
    assert prompt.tokens != split_anew, "this text shows nothing: it is split as it was written"
    assert n_read(server.chat(*texts, max_tokens=4)) <= 12


@pytest.mark.slow
@pytest.mark.parametrize("keeps", [True, False], ids=["with copies", "without"])
def test_two_conversations_in_turn(keeps: bool) -> None:
    with running(cache_bytes=1 << 30 if keeps else 0) as server:
        answers = two_in_turn(server)
        later = [answer for given in answers for answer in given[1:]]
        if keeps:
            assert all(n_read(answer) <= 16 for answer in later)
        else:
            assert all(cached(answer) <= 4 for answer in later)
            assert server.conversations.n_bytes == 0
    with running(cache_bytes=0) as alone:
        for talk, given in zip(([FIRST], [SECOND]), answers, strict=True):
            for i, answer in enumerate(given):
                assert content(alone.chat(*talk, temperature=0.8, seed=i, max_tokens=40)) == content(answer)
                talk += [content(answer), f"    # and now {i}"]


@pytest.mark.slow
@pytest.mark.parametrize("parallel", [1, 2])
def test_conversations_go_on_after_a_restart(parallel: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_states, "FEWEST", 16)
    fields: dict[str, Any] = {"temperature": 0.8, "seed": 1, "max_tokens": 24}
    with running(keeps_prompts=True, cache_bytes=1, parallel=parallel) as server:
        firsts = [server.chat(text, **fields) for text in (FIRST, SECOND)]
    assert len(prompt_folder.files()) == 2
    talks = [(text, content(first), "and?") for text, first in zip((FIRST, SECOND), firsts, strict=True)]
    with running(keeps_prompts=True, parallel=parallel) as server:
        answers = [server.chat(*talk, **fields) for talk in talks]
        anew = server.chat(*talks[0], cache_prompt=False, **fields)
    assert all(cached(a) >= f["usage"]["prompt_tokens"] - 1 for a, f in zip(answers, firsts, strict=True))
    assert cached(anew) == 0
    with running(parallel=parallel) as server:
        assert [content(server.chat(*talk, **fields)) for talk in talks] == [content(answer) for answer in answers]


@pytest.mark.slow
def test_copies_stay_within_their_bound() -> None:
    with running(cache_bytes=1) as server:
        two_in_turn(server)
        assert server.conversations.n_bytes == 0
        engine = server.service.loaded.model.engine
        server.wait_until_idle()
        one = len(engine.target.context.sequence_state(0))
        bounded = Conversations([engine], 3 * one)
        for i in range(12):
            prompt = [40 + i] * 60
            bounded.take_up(engine, prompt, lambda _: True)
            engine.target.set_prompt(prompt)
            assert bounded.n_bytes <= 3 * one
        assert bounded.n_bytes > one


def test_a_prompt_that_shares_most_of_what_is_there_copies_nothing(server: Server) -> None:
    fields: dict[str, Any] = {"max_tokens": 4}
    server.chat(FIRST, **fields)
    n_before = server.conversations.n_bytes
    for ending in ("a", "b", "c"):
        server.chat(FIRST + ending, **fields)
    assert server.conversations.n_bytes == n_before


@pytest.mark.slow
def test_a_prompt_is_read_anew_where_that_is_asked_for(server: Server) -> None:
    first = server.chat(FIRST, max_tokens=40)
    talk = (FIRST, content(first), "    return")
    kept = server.chat(*talk, max_tokens=40)
    anew = server.chat(*talk, max_tokens=40, cache_prompt=False)
    assert cached(kept) > 40
    assert cached(anew) == 0
    assert content(anew) == content(kept)


def test_the_plan_of_a_server_is_shown(server: Server) -> None:
    assert server.client.get("/props").json()["speculation"] == [str(SPECEXEC.plan(16, 6))]
