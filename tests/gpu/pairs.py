"""Pairs with layers on a device, what they write, and whether it is the target's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from specrun.catalog import embedded
from specrun.decoding.engine import Engine
from specrun.llama_settings import ALL_LAYERS, LlamaSettings
from specrun.loading.model import Model
from specrun.loading.run_options import RunOptions
from specrun.sampling import SamplingParameters
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF, Plan
from specrun.speculation.planning.pass_sizes import PassSizes
from tests.engines import Written, code_prompts, first_difference, write

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
    draft: Path | None = embedded.DRAFT,
    plan: Plan = ROOMY,
) -> Iterator[Model]:
    """A pair on one thread. draft_layers: of the draft on the device."""
    options = RunOptions(
        target,
        draft,
        (plan,),
        ctx_size=1024,
        settings=replace(settings, threads=1),
        draft_settings=LlamaSettings(threads=1, gpu_layers=draft_layers, rpc=settings.rpc),
        exact=exact,
    )
    with Model(options) as model:
        yield model


def texts(engine: Engine, sampling: SamplingParameters, plan: Plan, n_prompt: int = 40, n: int = 16) -> Written:
    """A text, and its continuation after further text: the cache keeps the prefix, and loses what was not accepted."""
    prompt, more = code_prompts(engine, 2, n_prompt)
    engine.reset()
    first = write(engine, prompt, sampling, plan, n)
    second = write(engine, [*prompt, *first.tokens, *more[:20]], sampling, plan, n)
    n_passes = first.n_passes + second.n_passes
    return Written(first.tokens + second.tokens, first.rows + second.rows, second.finish, n_passes, second.statistics)


def assert_exact(engine: Engine, plans: tuple[Plan, ...] = (TREE,), n_prompt: int = 40, n: int = 16) -> None:
    """Both texts are the same bits with each plan as without speculation, greedy and sampled, in fewer passes."""
    for sampling in (GREEDY, SAMPLED):
        plain = texts(engine, sampling, OFF.plan(), n_prompt, n)
        for plan in plans:
            written = texts(engine, sampling, plan, n_prompt, n)
            assert first_difference(written, plain) is None, f"{plan}, {sampling.temperature}"
            assert written.n_passes < plain.n_passes, "nothing was accepted"
