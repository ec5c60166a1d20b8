"""Several answers of the server in shared passes, with layers on a device."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from specrun.llama_settings import ALL_LAYERS
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF, Plan
from tests.serving.running import CHAT, Json, messages, running

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

STARTS = ("def f(x):", "import os\n\ndef walk(path):", "class Tree:\n    def add(self, x):", "x = [")
# What the size of a pass changed there was at most 0.07; cells of another text would change far more.
ROUNDING = 0.25


@pytest.mark.parametrize("in_vram", [4, ALL_LAYERS], ids=["half of the layers", "all layers"])
@pytest.mark.parametrize("plan", [OFF.plan(), SPECEXEC.plan(16, 6)], ids=str)
def test_four_clients_get_the_texts_that_each_gets_alone(plan: Plan, in_vram: int) -> None:
    """Up to rounding, which follows the size of a pass there: texts may part where two tokens are nearly as likely."""
    with running(plan=plan, parallel=4, gpu_layers=in_vram, draft_gpu_layers=in_vram) as server:
        fields: Json = {"max_tokens": 12, "temperature": 0, "logprobs": True, "top_logprobs": 2}
        bodies = [{"messages": messages(start), **fields} for start in STARTS]
        alone = [server.post(CHAT, body) for body in bodies]
        with ThreadPoolExecutor(len(bodies)) as executor:
            shared = list(executor.map(lambda body: server.post(CHAT, body), bodies))
        assert server.service.totals.shared_passes > 0
    for one, other in zip(alone, shared, strict=True):
        for own, beside in zip(tokens(one), tokens(other), strict=False):
            likeliest, second = (top["logprob"] for top in own["top_logprobs"])
            assert abs(likeliest - beside["top_logprobs"][0]["logprob"]) < ROUNDING
            if own["token"] != beside["token"]:
                assert likeliest - second < ROUNDING
                break


def tokens(answer: Json) -> list[Json]:
    """Those of an answer, with the likeliest ones at each place."""
    return list(answer["choices"][0]["logprobs"]["content"])
