"""Passes of usual sizes are made while a pair with layers on a device is loaded, and leave nothing behind."""

from __future__ import annotations

import pytest

from specrun.llama import DraftContext
from specrun.llama_settings import ALL_LAYERS, LlamaSettings
from tests.gpu.pairs import pair

pytestmark = pytest.mark.gpu


def test_models_on_a_device_have_made_passes() -> None:
    with pair(LlamaSettings(gpu_layers=ALL_LAYERS)) as model:
        draft = model.engine.draft
        assert isinstance(draft, DraftContext)
        for context in (model.engine.target.context, draft.context):
            assert context.n_passes > 1
            assert not context.sequence_lengths().any()


def test_models_in_ram_have_made_none() -> None:
    with pair(LlamaSettings(gpu_layers=0), draft_layers=0) as model:
        draft = model.engine.draft
        assert isinstance(draft, DraftContext)
        assert model.engine.target.context.n_passes == draft.context.n_passes == 0
