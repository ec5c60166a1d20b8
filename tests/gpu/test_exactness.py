"""On a GPU backend, too, the text with speculation is the text without it, bit for bit, if all passes have one size."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from specrun.catalog import embedded
from specrun.engine.decoding import Engine
from specrun.engine.model import Model
from specrun.engine.run_options import RunOptions
from specrun.llama_settings import ALL_LAYERS, LlamaSettings
from specrun.sampling import SamplingParameters
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF
from specrun.speculation.plan import Plan
from specrun.speculation.planning.pass_sizes import ANY_SIZE, PassSizes
from tests.engines import Written, code_prompts, first_difference, write
from tests.models import light_draft, wide_target

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

N_UNITS = 9  # layers of the embedded target, its output counted as one
TREE = SPECEXEC.plan(16, 8)
ROOMY = SPECEXEC.plan(64, 8)  # contexts for it have room for other plans and their padding
GREEDY, SAMPLED = SamplingParameters(temperature=0.0), SamplingParameters(temperature=0.8, seed=3)


def single(size: int) -> PassSizes:
    """All passes of one size, of which only what lies in consecutive cells is committed."""
    return PassSizes(size, size, size, in_order=True)


@contextmanager
def pair(
    settings: LlamaSettings,
    draft_layers: int = ALL_LAYERS,
    exact: bool = False,
    target: Path = embedded.TARGET,
    draft: Path = embedded.DRAFT,
    plan: Plan = ROOMY,
) -> Iterator[Model]:
    options = RunOptions(
        target,
        draft,
        (plan,),
        ctx_size=1024,
        settings=replace(settings, threads=1),
        draft_settings=LlamaSettings(threads=1, gpu_layers=draft_layers),
        exact=exact,
    )
    with Model(options) as model:
        yield model


def texts(engine: Engine, sampling: SamplingParameters, plan: Plan, n_prompt: int = 40, n: int = 16) -> Written:
    """A text, and its continuation behind further text: the cache keeps the prefix, and loses what was not accepted."""
    prompt, more = code_prompts(engine, 2, n_prompt)
    engine.reset()
    first = write(engine, prompt, sampling, plan, n)
    second = write(engine, [*prompt, *first.tokens, *more[:20]], sampling, plan, n)
    n_passes = first.n_passes + second.n_passes
    return Written(first.tokens + second.tokens, first.rows + second.rows, second.finish, n_passes, second.statistics)


def assert_exact(engine: Engine, plans: tuple[Plan, ...] = (TREE,), n_prompt: int = 40) -> None:
    for sampling in (GREEDY, SAMPLED):
        plain = texts(engine, sampling, OFF.plan(), n_prompt)
        for plan in plans:
            written = texts(engine, sampling, plan, n_prompt)
            assert first_difference(written, plain) is None, f"{plan}, {sampling.temperature}"
            assert written.n_passes < plain.n_passes, "nothing was accepted"


@pytest.mark.parametrize("n", range(N_UNITS + 1))
def test_any_number_of_layers(n: int) -> None:
    with pair(LlamaSettings(gpu_layers=n)) as model:
        assert model.placement
        assert model.placement.n_gpu_layers == n
        # Without a layer there, passes of every size give the same bits, as on a machine without a GPU.
        model.engine.target.padding = single(16) if n else ANY_SIZE
        assert_exact(model.engine)


@pytest.mark.parametrize("n", [1, 5, ALL_LAYERS])
def test_a_k_quant(n: int, made: Path) -> None:
    with pair(LlamaSettings(gpu_layers=n), target=wide_target(made, "q4_k_m"), draft=light_draft(made)) as model:
        model.engine.target.padding = single(16)
        assert_exact(model.engine)


@pytest.mark.parametrize(
    "settings",
    [
        LlamaSettings(flash_attn="off"),
        LlamaSettings(flash_attn="off", type_k="f32", type_v="f32"),
    ],
    ids=["no flash attention", "f32"],
)
def test_kinds_of_attention_and_of_the_cache(settings: LlamaSettings) -> None:
    with pair(replace(settings, gpu_layers=5)) as model:
        model.engine.target.padding = single(32)
        assert_exact(model.engine)


def test_the_text_does_not_depend_on_where_the_draft_is() -> None:
    written = []
    for draft_layers in (0, 2, ALL_LAYERS):
        with pair(LlamaSettings(gpu_layers=5), draft_layers) as model:
            model.engine.target.padding = single(16)
            written.append(texts(model.engine, SAMPLED, TREE))
    assert first_difference(written[1], written[0]) is None
    assert first_difference(written[2], written[0]) is None


def test_drafting_ahead() -> None:
    ahead = replace(TREE, overlap=True)
    with pair(LlamaSettings(gpu_layers=5), plan=replace(ROOMY, overlap=True)) as model:
        model.engine.target.padding = single(16)
        assert_exact(model.engine, (ahead,))


@pytest.mark.parametrize("budget", [2, 5])
def test_small_trees_and_chains(budget: int) -> None:
    with pair(LlamaSettings(gpu_layers=2), plan=SPECEXEC.plan(256, 16)) as model:
        model.engine.target.padding = single(max(budget, 8))
        assert_exact(model.engine, (SPECEXEC.plan(budget, 16), CHAIN.plan(depth=min(budget - 1, 8))))
