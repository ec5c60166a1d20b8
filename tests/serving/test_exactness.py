"""The same request gives the same text and the same log-probabilities with and without speculation."""

from __future__ import annotations

from typing import Any

import pytest

from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF
from tests.serving.running import CHAT, content, messages, running

FIELDS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0.8, "seed": 1},
    {"temperature": 1.2, "seed": 2, "top_k": 0, "top_p": 1, "min_p": 0},
    {"temperature": 0.8, "seed": 3, "repeat_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.2},
    {"temperature": 0.8, "seed": 4, "logit_bias": {str(token): 3 for token in range(40, 60)}},
    {"temperature": 0, "stop": ["\n\n"]},
]


@pytest.fixture(scope="module")
def plain() -> list[dict[str, Any]]:
    with running(plan=OFF.plan()) as server:
        return [server.post(CHAT, body) for body in requests()]


def requests() -> list[dict[str, Any]]:
    """A conversation of one turn with all fields, and one of two turns."""
    common = {"max_tokens": 60, "logprobs": True, "top_logprobs": 2}
    two_turns = messages("class Tree:", "    pass", "    def add(self, x):")
    return [
        *({"messages": messages("import os\n\ndef walk(path):"), **common, **fields} for fields in FIELDS),
        {"messages": two_turns, **common, **FIELDS[1]},
    ]


@pytest.mark.slow
@pytest.mark.parametrize("plan", [SPECEXEC.plan(16, 6), CHAIN.plan(depth=4)], ids=str)
def test_speculation_changes_no_answer(plan: Any, plain: list[dict[str, Any]]) -> None:
    with running(plan=plan) as server:
        n_drafted = 0
        for body, expected in zip(requests(), plain, strict=True):
            answer = server.post(CHAT, body)
            assert answer["choices"] == expected["choices"]
            n_drafted += answer["timings"]["draft_n_accepted"]
        assert n_drafted > 100
        again = server.post(CHAT, requests()[1])
        assert content(again) == content(plain[1])


@pytest.mark.slow
def test_the_fields_make_a_difference(plain: list[dict[str, Any]]) -> None:
    texts = [content(answer) for answer in plain[: len(FIELDS)]]
    assert len(set(texts)) == len(FIELDS)
