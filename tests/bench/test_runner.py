"""How long a benchmark is expected to take: by the texts that it will write, which are known from the start."""

from __future__ import annotations

import re

import pytest

import specrun
from specrun.bench import BenchPrompt
from specrun.bench.rows import AUTO_ROW, CHAIN_ROW, OFF_ROW, TREE_ROW, BenchSettings
from specrun.bench.runner import Bench
from specrun.long_run import Run
from specrun.sampling import SamplingParameters
from specrun.speculation.controllers.chooser import PlanChooser

PROMPTS = [BenchPrompt("code", "def f():"), BenchPrompt("code", "import os"), BenchPrompt("prose", "The")]


@pytest.mark.slow
@pytest.mark.parametrize("methods", [(CHAIN_ROW, TREE_ROW, AUTO_ROW), (AUTO_ROW,), (OFF_ROW,), ("specexec", "rest")])
@pytest.mark.parametrize("is_sweep", [False, True])
def test_the_texts_that_are_expected_are_those_that_are_written(methods: tuple[str, ...], is_sweep: bool) -> None:
    shown: list[str] = []
    settings = BenchSettings(
        SamplingParameters(temperature=0.0), 2, 2, methods=methods, budgets=(4,), depths=(2,), raw=True
    )
    with specrun.load(learn=False) as model:
        bench = Bench(model, settings, Run(shown.append))
        _ = bench.run(PROMPTS, is_sweep)
    assert bench._n_written == bench._n_expected > 0
    assert "warming up" in shown[0]
    shares = [int(share) for text in shown for share in re.findall(r"(\d+)%", text)]
    assert shares == sorted(shares)
    assert len(shares) == len(shown) - 2
    assert " left" in shown[-1] or "nearly done" in shown[-1]


@pytest.mark.slow
@pytest.mark.parametrize("is_sweep", [False, True])
def test_without_a_draft_model_auto_has_the_draft_sources(is_sweep: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [BenchPrompt("copy", "one, two, three, four, " * 6)]
    settings = BenchSettings(SamplingParameters(temperature=0.0), 32, 1, methods=(AUTO_ROW,), raw=True)
    with specrun.load(draft="none", learn=False) as model:
        assert {plan.drafts for plan in model.plans.candidates} == {True, False}
        made: list[PlanChooser] = []
        new_auto = model.plans.auto
        monkeypatch.setattr(model.plans, "auto", lambda t: made.append(new_auto(t)) or made[-1])
        bench = Bench(model, settings, Run(lambda _: None))
        off, auto = bench.run(prompts, is_sweep)
        assert [str(chooser) for chooser in made] == [auto.plan]
    assert (off.method, auto.method) == (OFF_ROW, AUTO_ROW)
    assert auto.tokens == off.tokens
    assert bench._n_written == bench._n_expected
