"""`--batch-size` and `--ubatch-size`: the passes in which a prompt is read are the same with every plan."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from specrun.catalog import embedded
from specrun.llama_settings import LlamaSettings
from specrun.loading.model import Model
from specrun.loading.run_options import RunOptions
from specrun.sampling import SamplingParameters
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF, Plan
from specrun.speculation.planning.pass_sizes import ANY_SIZE, PassSizes
from tests.engines import Written, code_prompts, first_difference, write
from tests.hybrids import noisy
from tests.models import random_llama, wide_target

# As given, and the tokens that llama.cpp gets and computes at once of a prompt, without a tree that needs more room.
SIZES = [
    (None, None, 512, 512), (None, 96, 96, 96), (64, None, 64, 64), (200, 700, 200, 200), (700, 100, 700, 100),
    (2048, 1024, 2048, 1024),
]  # fmt: skip
ROOM = CHAIN.plan(depth=15)
PLANS = [OFF.plan(), CHAIN.plan(depth=5), SPECEXEC.plan(200, 12)]


def loaded(target: Path, plan: Plan, batch: int | None, ubatch: int | None, draft: Path = embedded.DRAFT) -> Model:
    settings = LlamaSettings(threads=1, repack=False, batch_size=batch, ubatch_size=ubatch)
    one_thread = LlamaSettings(threads=1)
    # Padded passes need room for more than a root.
    return Model(RunOptions(target, draft, (plan,), ROOM, 2048, settings, one_thread))


def texts(
    target: Path,
    batch: int | None,
    ubatch: int | None,
    padding: PassSizes,
    temperature: float,
    draft: Path = embedded.DRAFT,
    plans: Sequence[Plan] = PLANS,
    n_prompt: int = 900,
) -> list[Written]:
    """Two turns by each of the plans, after a prompt of `n_prompt` tokens."""
    written = []
    for plan in plans:
        with loaded(target, plan, batch, ubatch, draft) as model:
            model.engine.target.padding = padding
            prompt, more = code_prompts(model.engine, 2, n_prompt)
            sampling = SamplingParameters(temperature=temperature, seed=5)
            first = write(model.engine, prompt, sampling, plan, 24)
            again = write(model.engine, [*prompt, *first.tokens, *more[: n_prompt // 3]], sampling, plan, 24)
            n_passes = first.n_passes + again.n_passes
            written.append(
                Written(first.tokens + again.tokens, first.rows + again.rows, again.finish, n_passes, again.statistics)
            )
    return written


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "ubatch", "n_call", "n_pass"), SIZES)
def test_llama_cpp_gets_the_sizes_that_it_would_have_by_its_own_options(
    batch: int | None, ubatch: int | None, n_call: int, n_pass: int, made: Path
) -> None:
    # Sizes do not depend on weights, and a prompt of 1,500 tokens takes the embedded target seconds.
    with loaded(random_llama(made / "long-context.gguf", n_ctx=2048), OFF.plan(), batch, ubatch) as model:
        target = model.engine.target
        sizes = []
        decode = target.context.decode
        target.context.decode = lambda batch: sizes.append(len(batch)) or decode(batch)  # type: ignore[method-assign, func-returns-value]
        target.set_prompt(list(range(100, 1601)))
        assert sizes[:-1] == [n_call] * (1500 // n_call)
        assert target.context.config.settings.prompt_pass == n_pass
        assert target.context.config.n_batch == max(n_pass, 64 + ROOM.budget), (
            "as many as a tree and what may be pending need"
        )


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "ubatch"), [(None, 96), (200, 700), (2048, 1024)])
def test_trees_write_what_plain_decoding_writes(batch: int | None, ubatch: int | None, made: Path) -> None:
    target = random_llama(made / "long-context.gguf", n_ctx=2048)
    draft = noisy(made / "draft-with-long-context.gguf", target)
    plain, *others = texts(target, batch, ubatch, ANY_SIZE, 0.8, draft)
    for other in others:
        assert first_difference(other, plain) is None
        assert other.n_passes < plain.n_passes, "something was accepted"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "sizes", "batch", "ubatch", "n_prompt"),
    [
        ("q4_k_m", PassSizes(8), None, 66, 150), ("q4_k_m", PassSizes(8), 500, 250, 600),
        ("f16", PassSizes(2), 2048, 1024, 600),
    ],
)  # fmt: skip
def test_it_holds_with_padding_where_bits_depend_on_the_size_of_a_pass(
    kind: str, sizes: PassSizes, batch: int | None, ubatch: int | None, n_prompt: int, made: Path
) -> None:
    plain, *others = texts(wide_target(made, kind), batch, ubatch, sizes, 0.0, n_prompt=n_prompt)
    for other in others:
        assert first_difference(other, plain) is None


@pytest.mark.slow
def test_the_bits_do_depend_on_the_size_of_a_prompts_passes(made: Path) -> None:
    """Otherwise the test above would show little: in passes of 4 tokens the kernels are others."""
    target = wide_target(made, "q4_k_m")
    usual, other = (
        texts(target, None, ubatch, ANY_SIZE, 0.0, plans=PLANS[:1], n_prompt=150)[0] for ubatch in (None, 4)
    )
    assert usual.rows != other.rows
