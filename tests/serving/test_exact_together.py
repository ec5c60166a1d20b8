"""`--exact` with several clients: shared passes of many sizes, over weights whose bits depend on the size."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from specrun.llama import tiled_kernels
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF
from specrun.speculation.planning.pass_sizes import ANY_SIZE, PassSizes
from tests.models import wide_target
from tests.serving.running import COMPLETIONS, Json, Server, running

# Beside the class that is measured here: those of this type on x86, with other kernels from 8 tokens on.
SMALL, LARGE = PassSizes(1, 1, 7), PassSizes(8)
TREE = SPECEXEC.plan(16, 6)
PROMPTS = (
    "x =",
    "def f(x):\n    return",
    "import os\n\n\ndef walk(path):\n    for name in os.listdir(path):\n        ",
    "a",
)


def bodies() -> list[Json]:
    """Prompts of a few tokens and of many, which are read at the same time."""
    fields: list[Json] = [{"temperature": 0}, {"temperature": 0.8, "seed": 1}]
    return [
        {"prompt": prompt, "max_tokens": 16 + 5 * i, "logprobs": 1, "cache_prompt": False, "ignore_eos": True, **field}
        for i, field in enumerate(fields)
        for prompt in PROMPTS
    ]


@pytest.fixture(scope="module")
def sizes(request: pytest.FixtureRequest) -> PassSizes | None:
    if request.param and not tiled_kernels.compute(["Q4_K"]):
        pytest.skip("other kernels, with other classes")
    return request.param


def choices(server: Server, requests: list[Json], n_clients: int) -> list[Any]:
    with ThreadPoolExecutor(n_clients) as executor:
        return [answer["choices"] for answer in executor.map(lambda body: server.post(COMPLETIONS, body), requests)]


def pad(server: Server, sizes: PassSizes) -> None:
    for engine in server.service.loaded.model.slots.engines:
        engine.target.padding = sizes


@pytest.fixture(scope="module")
def alone(made: Path, sizes: PassSizes | None) -> tuple[PassSizes, list[Any]]:
    """What plain decoding writes, one after the other, and in passes of which sizes.

    Another server would measure again, as each test has a data folder of its own, and beside other work the fastest
    class may then be another, with other bits.
    """
    with running(wide_target(made, "q4_k_m"), plan=OFF.plan(), exact=True) as server:
        sizes = sizes or server.service.loaded.model.exactness.sizes
        pad(server, sizes)
        return sizes, choices(server, bodies(), 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "plan"),
    [(None, OFF.plan()), (None, TREE), (SMALL, TREE), (LARGE, TREE)],
    ids=["measured, off", "measured", "small", "large"],
    indirect=["sizes"],
)
def test_four_clients_get_the_texts_of_one(made: Path, alone: tuple[PassSizes, list[Any]], plan: Any) -> None:
    sizes, texts = alone
    with running(wide_target(made, "q4_k_m"), plan=plan, exact=True, parallel=4) as server:
        pad(server, sizes)
        assert sizes != ANY_SIZE
        assert choices(server, bodies(), 4) == texts
        assert server.service.totals.shared_passes > 8
