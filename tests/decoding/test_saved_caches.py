"""Texts whose caches were copied out and in again go on bit for bit, and read nothing again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from specrun.catalog import embedded
from specrun.decoding.engine import Engine
from specrun.errors import LlamaError
from specrun.llama import DraftContext
from specrun.sampling import SamplingParameters
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF, Plan
from tests.eagle_heads import agreeing_pair
from tests.engines import Written, code_prompts, engine, first_difference, write
from tests.hybrids import KINDS, noisy, random_recurrent
from tests.models import random_gemma3
from tests.mtp_targets import random_mtp_step35
from tests.other_caches import random_deepseek2

SAMPLED = SamplingParameters(temperature=0.8, seed=1)
MODELS: dict[str, Callable[[Path], Path]] = {
    "embedded": lambda _: embedded.TARGET,
    "gemma3": lambda path: random_gemma3(path, window=24),
    "deepseek2": random_deepseek2,
    **{kind: (lambda path, kind=kind: random_recurrent(path, kind)) for kind in KINDS},  # type: ignore[misc]
}


@pytest.fixture(scope="module", params=[*MODELS, "eagle3", "mtp"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A target of each kind of cache, and a draft or a head."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "eagle3":
        return agreeing_pair(folder)
    if request.param == "mtp":
        target = random_mtp_step35(folder / "target.gguf")
        return target, target
    target = MODELS[request.param](folder / "target.gguf")
    if request.param == "embedded":
        return target, embedded.DRAFT
    return target, noisy(folder / "draft.gguf", target, 0.04)


def two_turns(e: Engine, plan: Plan, other: list[int] | None, restores: bool) -> tuple[Written, int]:
    """The second turn of a text, and the tokens of its prompt that were decoded. other: a text in between."""
    first, then = code_prompts(e, 2, 40)
    answer = write(e, first, SAMPLED, plan, 30)
    if other:
        saved = e.save()
        assert saved
        assert saved.n_bytes > 0
        write(e, other, SAMPLED, plan, 20)
        if restores:
            e.restore(saved)
    second = write(e, [*first, *answer.tokens, *then[:10]], SAMPLED, plan, 30)
    return second, second.statistics.prompt_tokens_decoded


@pytest.mark.slow
@pytest.mark.parametrize("plan", [OFF.plan(), CHAIN.plan(depth=3), SPECEXEC.plan(16, 5)], ids=str)
def test_a_text_goes_on_as_if_nothing_had_been_between(pair: tuple[Path, Path], plan: Plan) -> None:
    results = []
    for has_other, restores in ((False, False), (True, True), (True, False)):
        with engine(*pair, plan, ctx_size=300) as e:
            other = code_prompts(e, 3, 50)[2] if has_other else None
            results.append(two_turns(e, plan, other, restores))
    (alone, n_alone), (restored, n_restored), (read_again, n_again) = results
    assert first_difference(restored, alone) is None
    assert n_restored == n_alone
    assert n_again > 60 > n_restored
    assert read_again.tokens == alone.tokens


def test_a_draft_goes_on_too() -> None:
    plan = SPECEXEC.plan(16, 5)
    with engine(embedded.TARGET, embedded.DRAFT, plan) as e:
        first, other = code_prompts(e, 2, 60)
        answer = write(e, first, SAMPLED, plan, 30)
        saved = e.save()
        assert saved
        assert isinstance(e.draft, DraftContext)
        text = [*first, *answer.tokens, 40]
        expected = e.draft.start(text).copy()
        write(e, other, SAMPLED, plan, 30)
        e.restore(saved)
        n_before = e.draft.context.n_passes
        assert (e.draft.start(text) == expected).all()
        assert e.draft.context.n_passes == n_before + 1
        assert int(e.draft.context.sequence_lengths().max()) == len(text)


def test_what_a_failed_pass_left_is_not_saved() -> None:
    with engine(embedded.TARGET, embedded.DRAFT, OFF.plan()) as e:
        e.target.set_prompt([40] * 30)
        assert e.save()
        e.target.context.n_last_pass = None  # as a pass that failed leaves it
        assert e.save() is None


def test_a_state_that_does_not_fit_leaves_empty_caches() -> None:
    with engine(embedded.TARGET, None, OFF.plan()) as e:
        e.target.set_prompt([40] * 30)
        saved = e.save()
        assert saved
        broken = replace(saved, target=replace(saved.target, state=saved.target.state[:-100]))
        with pytest.raises(LlamaError):
            e.restore(broken)
        assert (e.target.n_cached, e.target.tokens) == (0, [])
        assert e.target.set_prompt([40] * 30) == 29
