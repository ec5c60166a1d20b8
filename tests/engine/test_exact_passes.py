"""`--exact`: no pass is larger than those whose logits are plain decoding's to the last bit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from specrun.catalog import embedded
from specrun.engine import exact_passes
from specrun.engine.decoding import Engine
from specrun.engine.model import Model
from specrun.engine.run_options import RunOptions
from specrun.llama.context import Logits
from specrun.llama_settings import LlamaSettings
from specrun.sampling import SamplingParameters
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF
from specrun.speculation.plan import Plan
from specrun.speculation.registry import METHODS
from specrun.speculation.shape import TreeShape
from specrun.speculation.tree import TokenTree
from tests.engines import code_prompts, engine, write

ONE_THREAD = LlamaSettings(threads=1)
LARGEST = 6
PLANS = [
    CHAIN.plan(depth=8), SPECEXEC.plan(16, 8), METHODS["merged"].plan(32), METHODS["draftless"].plan(32),
    METHODS["sequoia"].plan().shaped(TreeShape.branching((3, 2, 1, 1))),
]  # fmt: skip


@pytest.fixture(scope="module")
def bounded() -> Iterator[Engine]:
    with engine(embedded.TARGET, embedded.DRAFT, METHODS["merged"].plan(32)) as e:
        e.target.largest_pass = LARGEST
        yield e


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_pending_tokens_and_the_tree_together_are_within_the_bound(
    bounded: Engine, plan: Plan, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Twice the same lines, so that long runs are copied and many tokens accepted at once.
    prompt = code_prompts(bounded, 1, 60)[0] * 2
    sampling = SamplingParameters(temperature=temperature, seed=3)
    sizes = []
    score = bounded.target.score

    def counted(tree: TokenTree) -> Logits:
        sizes.append(bounded.target.n_pending + len(tree))
        return score(tree)

    monkeypatch.setattr(bounded.target, "score", counted)
    tokens = write(bounded, prompt, sampling, plan, 64).tokens
    assert len(sizes) < len(tokens), "something was accepted"
    assert 2 <= max(sizes) <= LARGEST
    if temperature == 0 or not plan.method.samples:
        assert tokens == write(bounded, prompt, sampling, OFF.plan(), 64).tokens


@pytest.mark.slow
@pytest.mark.parametrize("plan", [CHAIN.plan(depth=1), SPECEXEC.plan(16, 8), METHODS["draftless"].plan(32)], ids=str)
def test_it_holds_where_the_kernel_changes_with_the_length_of_the_text(plan: Plan) -> None:
    """Of two f16 caches llama.cpp reads fewer than 512 cells with one kernel, and more with others."""
    # One thread would always take the same kernel.
    f16 = LlamaSettings(threads=2, type_k="f16", type_v="f16")
    options = RunOptions(
        embedded.TARGET, embedded.DRAFT, (plan,), ctx_size=1024, settings=f16, draft_settings=ONE_THREAD, exact=True
    )
    with Model(options) as loaded:
        plan = loaded.plans.candidates[0]
        prompt = code_prompts(loaded.engine, 1, 700)[0]
        sampling = SamplingParameters(temperature=0.8, seed=1)
        off = write(loaded.engine, prompt, sampling, OFF.plan(), 48)
        assert write(loaded.engine, prompt, sampling, plan, 48).rows == off.rows


@pytest.mark.parametrize(("n", "notice"), [(1, "speculation is off"), (5, "at most 5 tokens"), (32, "")])
def test_a_notice_says_how_far_exact_limits_speculation(n: int, notice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_passes, "exact_up_to", lambda *_: n)
    plans = (SPECEXEC.plan(16, 8), OFF.plan())
    options = RunOptions(
        embedded.TARGET, embedded.DRAFT, plans, ctx_size=256, settings=ONE_THREAD, draft_settings=ONE_THREAD, exact=True
    )
    with Model(options) as loaded:
        said = [text for text in loaded.notices if "--exact" in text]
        assert len(said) == bool(notice)
        assert all(notice in text for text in said)
        assert loaded.plans.candidates == (plans if n > 1 else (OFF.plan(),))
        assert loaded.engine.target.largest_pass == n
