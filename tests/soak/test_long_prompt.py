"""The short form: after 2,000 tokens, where a draft has forgotten some."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest

from tests.models import random_llama
from tests.soak import long_prompt


@pytest.mark.long
def test_behind_a_long_prompt_the_text_is_plain_decodings(tmp_path: Path) -> None:
    target = random_llama(tmp_path / "target.gguf", n_ctx=4096)
    draft = random_llama(tmp_path / "draft.gguf", n_ctx=4096, weight_type=gguf.GGMLQuantizationType.Q4_0)
    outcome = long_prompt.compare(target, draft, n_prompt=2000, n_tokens=48)
    assert outcome.wrong is None
    assert outcome.passes < outcome.tokens, "something was accepted"
