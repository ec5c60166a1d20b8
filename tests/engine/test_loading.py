"""Loading a pair: what runs in the end, what is said about it, and that everything is freed."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from specrun.catalog import embedded
from specrun.engine.model import Model
from specrun.engine.run_options import DEFAULT_CTX_SIZE, RunOptions
from specrun.errors import PairError, UsageError
from specrun.llama_settings import LlamaSettings
from specrun.speculation.controllers.chooser import FastestPlan, FixedPlan
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF
from tests.models import random_llama

TREE = SPECEXEC.plan(16, 8)
ONE_THREAD = LlamaSettings(threads=1)


def test_everything_is_freed(random_model: Path) -> None:
    def resident_after(n_rounds: int) -> int:
        for _ in range(n_rounds):
            with Model(
                RunOptions(embedded.TARGET, random_model, (TREE,), settings=ONE_THREAD, draft_settings=ONE_THREAD)
            ) as model:
                model.engine.target.set_prompt(list(range(100)))
        return psutil.Process().memory_info().rss

    # A round maps 9 MB of weights and allocates more than 20 MB of caches and buffers.
    before = resident_after(3)
    assert resident_after(10) - before < 40e6


def test_one_plan_is_followed_and_several_are_chosen_from() -> None:
    with Model(RunOptions(embedded.TARGET, embedded.DRAFT, (TREE,))) as model:
        assert isinstance(model.plans.at(0.8), FixedPlan)
        assert model.notices == []
    with Model(RunOptions(embedded.TARGET, embedded.DRAFT, (TREE, OFF.plan()))) as model:
        assert isinstance(model.plans.at(0.8), FastestPlan)


def test_without_a_draft_the_plan_asked_for_is_off_and_it_says_so_once() -> None:
    with Model(RunOptions(embedded.TARGET, None, (TREE,))) as model:
        assert model.plans.candidates == (OFF.plan(),)
        assert len(model.notices) == 1
        assert "--draft" in model.notices[0]


def test_without_a_draft_and_a_plan_the_text_itself_is_drafted_from() -> None:
    with Model(RunOptions(embedded.TARGET, None, (TREE, OFF.plan()))) as model:
        assert [plan.method.name for plan in model.plans.candidates] == ["draftless", "off"]
        assert len(model.notices) == 1
        assert "specrun drafts from the text itself" in model.notices[0]


def test_plans_off_load_no_draft() -> None:
    with Model(RunOptions(embedded.TARGET, Path("missing.gguf"), (OFF.plan(),))) as model:
        assert model.engine.draft is None
        assert model.notices == []


def test_the_context_is_the_models_own_up_to_a_limit(tmp_path: Path) -> None:
    short = random_llama(tmp_path / "short.gguf", n_ctx=300)
    long = random_llama(tmp_path / "long.gguf", n_ctx=100_000)
    for path, expected in ((short, 300), (long, DEFAULT_CTX_SIZE)):
        with Model(RunOptions(path, None, (OFF.plan(),))) as model:
            assert model.engine.ctx_size == expected
    with Model(RunOptions(short, None, (OFF.plan(),), ctx_size=500)) as model:
        assert model.engine.ctx_size == 500
        assert "300" in model.notices[0]


@pytest.mark.parametrize("ctx_size", [-1, 0, 1, 2**31])
def test_an_absurd_context_is_refused(ctx_size: int) -> None:
    with pytest.raises(UsageError, match="--ctx-size"):
        Model(RunOptions(embedded.TARGET, None, (OFF.plan(),), ctx_size=ctx_size))


def test_a_pair_the_wrong_way_round_is_refused() -> None:
    with pytest.raises(PairError, match="swap"):
        Model(RunOptions(embedded.DRAFT, embedded.TARGET, (TREE,)))
