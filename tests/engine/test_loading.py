"""Loading a pair: what runs in the end, what is said about it, and that everything is freed."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from specrun.catalog import embedded
from specrun.engine.loading import Runtime
from specrun.engine.run_options import DEFAULT_CTX_SIZE, RuntimeOptions
from specrun.errors import PairError, UsageError
from specrun.llama_settings import LlamaSettings
from specrun.speculation import FastestPlan, FixedPlan, Plan
from tests.models import random_llama

TREE = Plan.tree(16, 8)
ONE_THREAD = LlamaSettings(threads=1)


def test_everything_is_freed(random_model: Path) -> None:
    def resident_after(n_rounds: int) -> int:
        for _ in range(n_rounds):
            with Runtime(
                RuntimeOptions(embedded.TARGET, random_model, (TREE,), settings=ONE_THREAD, draft_settings=ONE_THREAD)
            ) as runtime:
                runtime.engine.target.set_prompt(list(range(100)))
        return psutil.Process().memory_info().rss

    # A round maps 9 MB of weights and allocates more than 20 MB of caches and buffers.
    before = resident_after(3)
    assert resident_after(10) - before < 40e6


def test_one_plan_is_followed_and_several_are_chosen_from() -> None:
    with Runtime(RuntimeOptions(embedded.TARGET, embedded.DRAFT, (TREE,))) as runtime:
        assert isinstance(runtime.plans, FixedPlan)
        assert runtime.notices == []
    with Runtime(RuntimeOptions(embedded.TARGET, embedded.DRAFT, (TREE, Plan.off()))) as runtime:
        assert isinstance(runtime.plans, FastestPlan)


def test_without_a_draft_the_plan_asked_for_is_off_and_it_says_so_once() -> None:
    with Runtime(RuntimeOptions(embedded.TARGET, None, (TREE,))) as runtime:
        assert runtime.candidates == (Plan.off(),)
        assert len(runtime.notices) == 1
        assert "--draft" in runtime.notices[0]


def test_without_a_draft_and_a_plan_the_text_itself_is_drafted_from() -> None:
    with Runtime(RuntimeOptions(embedded.TARGET, None, (TREE, Plan.off()))) as runtime:
        assert [plan.method for plan in runtime.candidates] == ["draftless", "off"]
        assert len(runtime.notices) == 1
        assert "drafting from the text itself" in runtime.notices[0]


def test_plans_off_load_no_draft() -> None:
    with Runtime(RuntimeOptions(embedded.TARGET, Path("missing.gguf"), (Plan.off(),))) as runtime:
        assert runtime.engine.draft is None
        assert runtime.notices == []


def test_the_context_is_the_models_own_up_to_a_limit(tmp_path: Path) -> None:
    short = random_llama(tmp_path / "short.gguf", n_ctx=300)
    long = random_llama(tmp_path / "long.gguf", n_ctx=100_000)
    for path, expected in ((short, 300), (long, DEFAULT_CTX_SIZE)):
        with Runtime(RuntimeOptions(path, None, (Plan.off(),))) as runtime:
            assert runtime.ctx_size == expected
    with Runtime(RuntimeOptions(short, None, (Plan.off(),), ctx_size=500)) as runtime:
        assert runtime.ctx_size == 500
        assert "300" in runtime.notices[0]


@pytest.mark.parametrize("ctx_size", [-1, 0, 1, 2**31])
def test_an_absurd_context_is_refused(ctx_size: int) -> None:
    with pytest.raises(UsageError, match="--ctx-size"):
        Runtime(RuntimeOptions(embedded.TARGET, None, (Plan.off(),), ctx_size=ctx_size))


def test_a_pair_the_wrong_way_round_is_refused() -> None:
    with pytest.raises(PairError, match="swap"):
        Runtime(RuntimeOptions(embedded.DRAFT, embedded.TARGET, (TREE,)))
