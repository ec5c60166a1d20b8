"""Sliding windows, attention sinks, latent attention: trees and chains write the same text, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from specrun.sampling import SamplingParameters
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.guessed import DRAFTLESS
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF
from specrun.speculation.planning.pass_sizes import ANY_SIZE, PassSizes
from tests.engines import engine, first_difference, write, written_by
from tests.hybrids import noisy
from tests.models import random_gemma3
from tests.other_caches import random_deepseek2, random_gpt_oss

SAMPLED = SamplingParameters(temperature=0.8, seed=1)
WINDOW = 24  # tokens
MODELS: dict[str, Callable[[Path], Path]] = {
    "gemma3": lambda path: random_gemma3(path, window=WINDOW),
    "gpt-oss": lambda path: random_gpt_oss(path, window=WINDOW),
    "deepseek2": random_deepseek2,
}


@pytest.fixture(scope="module", params=MODELS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A target, and a draft that is like it but not the same."""
    folder = tmp_path_factory.mktemp(request.param)
    target = MODELS[request.param](folder / "target.gguf")
    return target, noisy(folder / "draft.gguf", target, 0.04)


@pytest.mark.slow
def test_chains_and_trees_write_the_same_text(pair: tuple[Path, Path]) -> None:
    target, draft = pair
    plain = written_by(OFF.plan(), SAMPLED, 2, target=target, draft=draft)
    for plan in (CHAIN.plan(depth=4), SPECEXEC.plan(24, 6), SPECEXEC.plan(100, 4)):
        results = written_by(plan, SAMPLED, 2, target=target, draft=draft)
        for result, reference in zip(results, plain, strict=True):
            assert first_difference(result, reference) is None, plan
            lengths = result.statistics.accepted
            assert result.n_passes < reference.n_passes
            assert sum(lengths[: plan.depth]), "no tree was taken back"


def test_passes_of_latent_attention_stay_with_one_kernel(tmp_path: Path) -> None:
    # Its K and V have one type, with which llama.cpp has another kernel for passes of 64 tokens and more.
    with engine(random_deepseek2(tmp_path / "model.gguf"), None, DRAFTLESS.plan(100)) as e:
        assert e.target.padding == PassSizes(1, 1, 63)
        assert e.target.room() == 63
    with engine(random_gpt_oss(tmp_path / "other.gguf"), None, DRAFTLESS.plan(100)) as e:
        assert e.target.padding == ANY_SIZE


@pytest.mark.slow
def test_a_long_text_is_the_same_beyond_512_cells(pair: tuple[Path, Path]) -> None:
    target, draft = pair
    plain = written_by(OFF.plan(), SAMPLED, 1, 480, max_tokens=64, target=target, draft=draft)
    for plan in (CHAIN.plan(depth=4), SPECEXEC.plan(24, 6)):
        result = written_by(plan, SAMPLED, 1, 480, max_tokens=64, target=target, draft=draft)[0]
        assert first_difference(result, plain[0]) is None, plan


@pytest.mark.slow
def test_a_text_that_turns_back_behind_the_window_is_the_same(pair: tuple[Path, Path]) -> None:
    # What a window leaves behind must still be in the cache when the text is continued in another way.
    plan = SPECEXEC.plan(24, 6)
    with engine(*pair, plan) as e:
        prompt = list(range(40, 80))
        first = write(e, prompt, SAMPLED, plan, 3 * WINDOW)
        again = write(e, prompt, SAMPLED, plan, 3 * WINDOW)
        assert again.statistics.prompt_tokens_decoded == 0
        assert (again.tokens, again.rows) == (first.tokens, first.rows)
        e.reset()
        assert first_difference(write(e, prompt, SAMPLED, OFF.plan(), 3 * WINDOW), first) is None
