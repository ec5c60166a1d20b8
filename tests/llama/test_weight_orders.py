"""Weights that lie in RAM re-ordered and as they are in the file: each pass takes those that its size asks for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specrun.catalog import embedded
from specrun.llama import LlamaModel, weight_orders
from specrun.llama.batch import committed_tokens
from specrun.llama.context import ALL_SEQUENCES, ContextConfig, LlamaContext, Logits
from specrun.llama_settings import LlamaSettings
from specrun.loading.model import Model
from specrun.loading.run_options import RunOptions
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF
from tests.models import wide_target

pytestmark = pytest.mark.reordered

LEAST = 12
BOTH = LlamaSettings(threads=1, repack=True, file_order_from=LEAST)
TOKENS = [5 + 7 * i % 90 for i in range(64)]


@pytest.fixture(scope="module")
def k_quant(made: Path) -> Path:
    path = wide_target(made, "q4_k_m")
    with LlamaModel(path, BOTH) as model:
        assert model.orders
        if not model.orders.places:
            pytest.skip("this llama.cpp re-orders no K-quants on this CPU")
    return path


@pytest.fixture(scope="module")
def contexts(k_quant: Path) -> Iterator[dict[str, LlamaContext]]:
    kinds = {
        "file": LlamaSettings(threads=1, repack=False),
        "reordered": LlamaSettings(threads=1, repack=True),
        "both": BOTH,
    }
    with ExitStack() as stack:
        made = {}
        for name, settings in kinds.items():
            model = stack.enter_context(LlamaModel(k_quant, settings))
            config = ContextConfig(n_ctx=64, n_seq_max=1, n_batch=64, n_outputs=64, settings=settings)
            made[name] = stack.enter_context(LlamaContext(model, config))
        yield made


def rows(context: LlamaContext, n: int) -> Logits:
    context.remove(ALL_SEQUENCES, 0)
    return context.decode(committed_tokens(TOKENS[:n], 0, 1, n_outputs=n)).copy()


def test_each_pass_has_the_bits_of_the_weights_of_its_size(contexts: dict[str, LlamaContext]) -> None:
    for n in (4, 16, 1, LEAST, LEAST - 1, 64, 64, 8):
        kind = "file" if n >= LEAST else "reordered"
        assert np.array_equal(rows(contexts["both"], n), rows(contexts[kind], n)), n
    assert not np.array_equal(rows(contexts["file"], 16), rows(contexts["reordered"], 16))


def test_a_change_that_was_interrupted_is_made_again(contexts: dict[str, LlamaContext]) -> None:
    orders: Any = contexts["both"].model.orders
    expected = rows(contexts["both"], 16), rows(contexts["both"], 4)
    places = orders.places

    def interrupted() -> Iterator[Any]:
        yield from places[:3]
        raise KeyboardInterrupt

    orders.places = interrupted()
    with pytest.raises(KeyboardInterrupt):
        orders.choose(16)
    orders.places = places
    assert np.array_equal(rows(contexts["both"], 4), expected[1])
    assert np.array_equal(rows(contexts["both"], 16), expected[0])


@pytest.mark.slow
def test_exact_texts_are_the_same_with_speculation(k_quant: Path) -> None:
    """The size from which on weights come from the file is the end of a class of sizes."""
    texts = []
    for plan in (OFF.plan(), SPECEXEC.plan(16, 6)):
        options = RunOptions(k_quant, embedded.DRAFT, (plan,), ctx_size=256, settings=BOTH, exact=True)
        with Model(options) as model:
            texts.append([model.generate("def f(x):", max_tokens=40, temp=temp, seed=1).text for temp in (0, 0.8)])
            if plan.drafts:
                assert model.exactness.sizes.most is not None or model.exactness.sizes.least >= LEAST
    assert texts[0] == texts[1]


def test_a_llama_cpp_that_does_not_show_its_weights_has_one_order_and_says_so(
    k_quant: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_orders, "_TENSORS", "no_such_function")
    weight_orders._tensor_map.cache_clear()
    try:
        with LlamaModel(k_quant, BOTH) as model:
            assert model.orders is None
        with Model(RunOptions(k_quant, None, (OFF.plan(),), ctx_size=256, settings=BOTH)) as whole:
            assert [notice for notice in whole.notices if "does not show where weights lie" in notice]
    finally:
        weight_orders._tensor_map.cache_clear()
