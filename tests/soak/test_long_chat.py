"""The short form of the long chat: some dozen times more than the context holds."""

from __future__ import annotations

import pytest

from specrun.catalog import embedded
from specrun.llama_settings import LlamaSettings
from specrun.loading.model import Model
from specrun.loading.run_options import RunOptions
from specrun.speculation.drafters.specexec import SPECEXEC
from tests.soak.long_chat import chat


@pytest.mark.long
def test_nothing_grows_while_turns_are_dropped() -> None:
    one = LlamaSettings(threads=1)
    options = RunOptions(
        embedded.TARGET, embedded.DRAFT, (SPECEXEC.plan(12, 4),), ctx_size=256, settings=one, draft_settings=one
    )
    with Model(options) as model:
        done = chat(model, 1200)
    assert done.dropped > 5
    assert done.again + done.undone + done.stopped > 2
    assert done.growth(lambda look: look.objects) < 500
    assert done.growth(lambda look: look.files) == done.growth(lambda look: look.threads) == 0
    assert max(look.target_cells for look in done.looks) <= 256
    assert max(look.draft_cells for look in done.looks) <= 256 + 12
