"""Several answers of the server in shared passes, with layers on a device."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from specrun.llama_settings import ALL_LAYERS
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF
from specrun.speculation.plan import Plan
from tests.serving.running import CHAT, content, messages, running

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

STARTS = ("def f(x):", "import os\n\ndef walk(path):", "class Tree:\n    def add(self, x):", "x = [")


@pytest.mark.parametrize("in_vram", [4, ALL_LAYERS], ids=["half of the layers", "all layers"])
@pytest.mark.parametrize("plan", [OFF.plan(), SPECEXEC.plan(16, 6)], ids=str)
def test_four_clients_get_the_texts_that_each_gets_alone(plan: Plan, in_vram: int) -> None:
    """Greedy and short, so that rounding, which follows the size of a pass there, decides nothing."""
    with running(plan=plan, parallel=4, gpu_layers=in_vram, draft_gpu_layers=in_vram) as server:
        bodies = [{"messages": messages(start), "max_tokens": 12, "temperature": 0} for start in STARTS]
        alone = [content(server.post(CHAT, body)) for body in bodies]
        with ThreadPoolExecutor(len(bodies)) as executor:
            shared = list(executor.map(lambda body: content(server.post(CHAT, body)), bodies))
        assert shared == alone
        assert server.service.totals.shared_passes > 0
