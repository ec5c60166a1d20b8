"""The lines about an answer, and the picture of a placement."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import specrun
from specrun.hardware.machine import Device
from specrun.hardware.placement import Site, place
from specrun.loading.run_plans import RunPlans
from specrun.speculation.controllers.arm import ExpectedPlan, untried
from specrun.speculation.controllers.auto import Auto
from specrun.speculation.drafters.cost_aware import ADAPTIVE
from specrun.speculation.method import OFF
from specrun.speculation.planning.costs import CostModel, CostTable, PassTime
from specrun.speculation.planning.guide import Guide, RunCosts
from specrun.views.answer_report import as_json, as_text, bar, chat_line, layers, picture, plan_words
from tests.hardware.test_placement import DENSE, GB, MOE, request


def test_the_line_at_the_start_of_a_chat_says_who_answers_and_who_drafts(script: Path) -> None:
    with specrun.load(None, threads=1) as model:
        assert chat_line(None, model, 0.0, None) == "the embedded pair: drafts by its draft where that pays"
    with specrun.load(script, threads=1) as model:
        way = "`specrun models make-draft x` makes one"
        assert chat_line(str(script), model, 0.0, way) == f"script.gguf: no draft; {way}"
        assert chat_line("ollama:x", model, 0.0, None) == "ollama:x: drafts from the text itself where that pays"
    with specrun.load(None, threads=1, speculate="tree", budget=8) as model:
        assert chat_line(None, model, 0.0, None) == "the embedded pair: drafts by its draft, tree of 8 nodes, 7 deep"
    with specrun.load(None, threads=1, speculate="off") as model:
        assert chat_line(None, model, 0.0, None) == "the embedded pair: no speculation"
    with specrun.load(None, threads=1, method="specinfer") as model:
        assert "a seed's text differs from plain decoding's" in chat_line(None, model, 0.8, None)
        assert "differs" not in chat_line(None, model, 0.0, None)


def test_a_rate_is_promised_only_of_a_plan_that_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(*expected: ExpectedPlan) -> tuple[str, str]:
        auto = Auto(expected, Guide(RunCosts.of(CostModel(CostTable([PassTime(1, 64, 100.0)])))))
        monkeypatch.setattr(RunPlans, "at", lambda _, __: auto)
        return plan_words(model, 0.0), chat_line(None, model, 0.0, None).removeprefix("the embedded pair: ")

    plan, plain = ADAPTIVE.plan(64, 16, 16), ExpectedPlan(OFF.plan(), 10.0, 0.1)
    with specrun.load(None, threads=1) as model:
        hoped_for, where = told(plain, *untried([plan], 10.0))
        assert hoped_for.startswith("whatever is fastest")
        assert where == "drafts by its draft where that pays"
        known, at_first = told(plain, ExpectedPlan(plan, 20.0, 0.1))
        assert known == f"at first {plan}, learned while writing; expected 20.0 tokens/s, plain decoding 10.0 tokens/s"
        assert at_first == "drafts by its draft; expected 20.0 tokens/s, 2.0 times as fast as without"
        off, none = told(plain, ExpectedPlan(plan, 5.0, 0.1))
        assert off == none == "at first no drafts (learned while writing); 10.0 tokens/s expected"


def test_a_plan_that_auto_left_midway_is_that_of_the_end() -> None:
    costs = Guide(RunCosts.of(CostModel(CostTable([PassTime(1, 64, 100.0)]))))
    off = Auto([ExpectedPlan(OFF.plan(), 10.0, 0.1)], costs)
    for options, plan in (
        ({"speculate": "tree", "budget": 8}, "at last off, learned"),
        ({"speculate": "off"}, "off, learned"),
    ):
        with specrun.load(None, threads=1, **options) as model:
            completion = model.generate("def read", max_tokens=8, temp=0)
            completion.plans = off
            assert as_json(completion, model, "", "")["plan"].startswith(plan)
            assert as_text(completion, model).startswith(f"plan        {plan}")


def test_it_is_plain_letters() -> None:
    text = picture(place(request(DENSE, 8 * GB)))
    lines = text.splitlines()
    assert text.isascii()
    assert len(lines) == 3
    assert lines[0].startswith("CUDA0 ")
    assert " of 8.00 GB" in lines[0]
    assert all(letter in lines[0] for letter in ("dd", "tttt", "k", "c", "target ", "KV cache ", "compute "))
    assert lines[1].startswith("RAM ")
    assert "of 32 layers and the output in VRAM, partly in VRAM" in lines[2]


def test_words() -> None:
    assert layers(place(request(DENSE))) == "target: all 32 layers in RAM"
    assert layers(place(request(DENSE, 40 * GB))).endswith("the output in VRAM; draft in VRAM")
    servers = (Device("RPC0", "10.0.0.2:50052", "GPU", "RPC", 40 * GB, 40 * GB),)
    remote = place(replace(request(DENSE), gpus=servers))
    assert layers(remote) == "target: 32 of 32 layers and the output in VRAM or on 10.0.0.2:50052"
    assert "output in VRAM, experts of 31 layers in RAM" in layers(place(request(MOE, 6 * GB)))


def test_bars_have_one_length() -> None:
    for parts in ({}, {"draft": 1}, {"draft": 1, "target": 5 * GB, "compute": 9 * GB}, {"target": 50 * GB}):
        assert len(bar(Site("CUDA0", "", 8 * GB, parts))) == 32  # type: ignore[arg-type]
    assert bar(Site("CUDA0", "", 8 * GB, {"target": 4 * GB})) == "t" * 16 + "." * 16
    assert bar(Site("CUDA0", "", 0, {})) == "." * 32
