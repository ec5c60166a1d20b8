"""On a GPU backend, too, the text with speculation is the text without it, bit for bit, if all passes have one size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specrun.llama.pass_bounds import BLOCK
from specrun.llama_settings import ALL_LAYERS, LlamaSettings
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF
from specrun.speculation.planning.pass_sizes import ANY_SIZE, PLAIN_ONLY
from tests.engines import first_difference
from tests.gpu.pairs import GREEDY, N_UNITS, SAMPLED, TREE, assert_exact, pair, single, texts
from tests.models import light_draft, wide_heads, wide_target

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


@pytest.mark.parametrize("n", range(N_UNITS + 1))
def test_any_number_of_layers(n: int, made: Path) -> None:
    with pair(LlamaSettings(gpu_layers=n), target=wide_heads(made, 128 if n % 2 else 64)) as model:
        assert model.placement
        assert model.placement.n_gpu_layers == n
        # Without a layer there, passes of every size give the same bits, as on a machine without a GPU.
        model.engine.target.padding = single(16) if n else ANY_SIZE
        assert_exact(model.engine)


@pytest.mark.parametrize("n", range(N_UNITS + 1))
def test_a_k_quant(n: int, made: Path) -> None:
    with pair(LlamaSettings(gpu_layers=n), target=wide_target(made, "q4_k_m"), draft=light_draft(made)) as model:
        model.engine.target.padding = single(16)
        assert_exact(model.engine)


@pytest.mark.parametrize(
    "settings",
    [
        LlamaSettings(flash_attn="off"),
        LlamaSettings(flash_attn="off", type_k="f32", type_v="f32"),
        LlamaSettings(type_k="q8_0", type_v="q8_0"),
        LlamaSettings(op_offload=False),
    ],
    ids=["no flash attention", "f32", "q8_0", "no offloading"],
)
def test_kinds_of_attention_and_of_the_cache(settings: LlamaSettings, made: Path) -> None:
    with pair(replace(settings, gpu_layers=5), target=wide_heads(made, 128)) as model:
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


@pytest.mark.parametrize("budget", [2, 5, 64, 256])
def test_trees_of_any_size_and_chains(budget: int) -> None:
    with pair(LlamaSettings(gpu_layers=2), plan=SPECEXEC.plan(256, 16)) as model:
        model.engine.target.padding = single(max(budget, 8))
        plans = (SPECEXEC.plan(budget, 16), CHAIN.plan(depth=min(budget - 1, 8)))
        assert_exact(model.engine, plans, n=16 if budget < 256 else 6)


def test_without_padding_the_bits_differ() -> None:
    """Otherwise the tests above would show nothing."""
    with pair(LlamaSettings(gpu_layers=ALL_LAYERS)) as model:
        assert texts(model.engine, GREEDY, TREE).rows != texts(model.engine, GREEDY, OFF.plan()).rows


@pytest.mark.parametrize(("n", "head_dim"), [(5, 64), (ALL_LAYERS, 128)])
def test_the_class_that_is_measured_at_load_is_exact(n: int, head_dim: int, made: Path) -> None:
    with pair(LlamaSettings(gpu_layers=n), exact=True, target=wide_heads(made, head_dim)) as model:
        assert model.exactness.is_exact
        assert model.exactness.sizes != PLAIN_ONLY
        # The first text crosses the boundary between two blocks of cells.
        assert_exact(model.engine, (TREE, CHAIN.plan(depth=4)), n_prompt=BLOCK - 10)
