"""Loading a pair: what runs in the end, what is said about it, that everything is freed, and passes that nobody waits
for: on a GPU before anything is timed (here on the CPU), and those of a draft.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp
import psutil
import pytest

from specrun.catalog import embedded
from specrun.decoding.generation import Request
from specrun.errors import PairError, UsageError
from specrun.llama import DraftContext
from specrun.llama.facts.relied_on import EXACT_TYPES, why_not
from specrun.llama_settings import LlamaSettings
from specrun.loading import loading
from specrun.loading.model import Model
from specrun.loading.run_options import DEFAULT_CTX_SIZE, RunOptions
from specrun.sampling import SamplingParameters
from specrun.speculation.controllers.auto import Auto
from specrun.speculation.controllers.chooser import FixedPlan
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF, Plan
from specrun.speculation.registry import METHODS
from tests.engines import code_prompts, engine, first_difference, write
from tests.models import random_llama

TREE, LARGE_TREE = SPECEXEC.plan(16, 8), SPECEXEC.plan(64, 8)
GREEDY = SamplingParameters(temperature=0.0)
ONE_THREAD = LlamaSettings(threads=1, flash_attn="on")  # without a trial of attention, which loads models, too


GRAMMAR = 'root ::= "a" [bc]{1,9}'

# What makes an object of llama.cpp, the kind of object, and what frees it.
MADE_AND_FREED = [
    ("llama_model_load_from_file", "model", "llama_model_free"),
    ("llama_init_from_model", "context", "llama_free"),
    ("llama_sampler_init_grammar", "sampler", "llama_sampler_free"),
    ("llama_sampler_clone", "sampler", "llama_sampler_free"),
]


class LlamaObjects:
    """Counts the models, contexts and samplers that llama.cpp makes, and keeps those that are not freed yet."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.n_made: Counter[str] = Counter()
        self.left: dict[int, str] = {}
        for make, kind, _ in MADE_AND_FREED:
            monkeypatch.setattr(llama_cpp, make, self._making(kind, getattr(llama_cpp, make)))
        for free in {free for _, _, free in MADE_AND_FREED}:
            monkeypatch.setattr(llama_cpp, free, self._freeing(getattr(llama_cpp, free)))

    def _making(self, kind: str, make: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            made = make(*arguments)
            if made:
                self.n_made[kind] += 1
                self.left[_address(made)] = kind
            return made

        return counted

    def _freeing(self, free: Callable[..., Any]) -> Callable[..., Any]:
        def counted(freed: Any) -> None:
            assert self.left.pop(_address(freed), None), "freed twice"
            free(freed)

        return counted


def _address(pointer: Any) -> int:
    return ctypes.cast(pointer, ctypes.c_void_p).value or 0


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch) -> LlamaObjects:
    why_not(EXACT_TYPES)  # a process checks llama.cpp once, with a model of its own
    return LlamaObjects(monkeypatch)


def one_run(draft: Path | None, plan: Plan = TREE, **options: Any) -> None:
    """Load a pair, write a few tokens with a grammar, and close it."""
    settings = {"settings": ONE_THREAD, "draft_settings": ONE_THREAD}
    with Model(RunOptions(embedded.TARGET, draft, (plan,), **settings, **options)) as model:
        request = Request(list(range(100)), SamplingParameters(), 4, gbnf=GRAMMAR)
        assert model.complete(request).run().token_ids


@pytest.mark.slow
def test_every_model_context_and_sampler_is_freed(objects: LlamaObjects, random_model: Path) -> None:
    one_run(random_model)
    assert (objects.n_made["model"], objects.n_made["context"]) == (2, 2)
    assert objects.n_made["sampler"] > 2
    assert not objects.left
    one_run(random_model, METHODS["draftless"].plan(8))
    one_run(None, OFF.plan(), exact=True)
    assert not objects.left


def test_what_was_loaded_is_freed_when_loading_fails(
    objects: LlamaObjects, monkeypatch: pytest.MonkeyPatch, random_model: Path
) -> None:
    with pytest.raises(PairError):
        Model(RunOptions(embedded.DRAFT, embedded.TARGET, (TREE,)))
    assert objects.n_made["model"] == 2
    assert not objects.left
    monkeypatch.setattr(Model, "_made_ready", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        one_run(random_model)
    assert objects.n_made["context"] == 2
    assert not objects.left


@pytest.mark.slow
def test_memory_does_not_grow_with_every_run(random_model: Path) -> None:
    def resident_after(n_rounds: int) -> int:
        for _ in range(n_rounds):
            one_run(random_model)
        return psutil.Process().memory_info().rss

    # A context that stays takes more than 20 MB of caches and buffers, so ten of them 200 MB.
    before = resident_after(3)
    assert resident_after(10) - before < 40e6


@pytest.mark.slow
def test_one_plan_is_followed_and_several_are_chosen_from() -> None:
    with Model(RunOptions(embedded.TARGET, embedded.DRAFT, (TREE,))) as model:
        assert isinstance(model.plans.at(0.8), FixedPlan)
        assert model.notices == []
    with Model(RunOptions(embedded.TARGET, embedded.DRAFT, (TREE, OFF.plan()))) as model:
        assert isinstance(model.plans.at(0.8), Auto)


def test_without_a_draft_the_plan_asked_for_is_off_and_it_says_so_once() -> None:
    with Model(RunOptions(embedded.TARGET, None, (TREE,))) as model:
        assert model.plans.candidates == (OFF.plan(),)
        assert len(model.notices) == 1
        assert "--draft" in model.notices[0]


def test_without_a_draft_and_a_plan_the_text_itself_is_drafted_from() -> None:
    with Model(RunOptions(embedded.TARGET, None, (TREE, OFF.plan()))) as model:
        assert [plan.method.name for plan in model.plans.candidates] == ["draftless", "off"]
        assert (model.notices, model.draft) == ([], None), "whoever chose the files has said so"


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


@pytest.mark.slow
def test_nothing_stays_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_WARM_UP_SECONDS", 60.0)
    with engine(embedded.TARGET, embedded.DRAFT, LARGE_TREE) as pair:
        context, (prompt,) = pair.target.context, code_prompts(pair, 1, 20)
        assert context.n_passes == 0, "no layer lies on a GPU"
        before = write(pair, prompt, GREEDY, OFF.plan(), 8)
        pair.reset()
        n_passes = context.n_passes
        loading.warm_up(context)
        assert context.n_passes - n_passes > len(loading._WARM_UP_SIZES)
        assert not context.sequence_lengths().any()
        assert first_difference(write(pair, prompt, GREEDY, OFF.plan(), 8), before) is None


def test_they_end_after_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_WARM_UP_SECONDS", 0.0)
    with engine(embedded.TARGET, embedded.DRAFT, LARGE_TREE) as pair:
        loading.warm_up(pair.target.context)
        assert pair.target.context.n_passes == 1


def test_a_drafts_passes_are_timed_while_it_is_loaded() -> None:
    with engine(embedded.TARGET, embedded.DRAFT, LARGE_TREE) as pair:
        assert isinstance(pair.draft, DraftContext)
        found = loading.timed(pair.draft.context)
        assert found.sizes == (1, 8)
        assert all(time.ms > 0 for time in found.times)
        assert not pair.draft.context.sequence_lengths().any()


def test_a_moment_in_which_the_core_was_busy_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    with engine(embedded.TARGET, embedded.DRAFT, LARGE_TREE) as pair:
        assert isinstance(pair.draft, DraftContext)
        took = iter([9.0, 2.0, 1000.0, 2.5, 9.0, 3.0, 1000.0, 3.5])  # of each size the first pass is not timed
        monkeypatch.setattr(loading, "_pass_ms", lambda *_: next(took))
        assert [time.ms for time in loading.timed(pair.draft.context).times] == [2.0, 3.0]
