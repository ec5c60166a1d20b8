"""Whether llama.cpp computes layer by layer, as streaming needs it. Each streamed model is checked again."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.weight_pages import n_bytes, weight_pages
from specrun.hardware.memory import Pressure
from specrun.hardware.residency import FEWEST_SLOTS, RingSettings, plan_residency
from specrun.llama.context import ContextConfig, LlamaContext
from specrun.llama.facts import tiny_model
from specrun.llama.loaded_model import LlamaModel
from specrun.llama.streaming import self_check
from specrun.llama.streaming.address_space import PAGE, CannotStreamError
from specrun.llama.streaming.streamed_weights import StreamedWeights
from specrun.llama_settings import LlamaSettings


def check(settings: LlamaSettings) -> str | None:
    """Stream the layers of a tiny model, and compare the logits with those of llama.cpp's own mapping."""
    if sys.platform != "linux":
        return "streaming needs Linux"
    with tempfile.TemporaryDirectory() as folder:
        path = tiny_model.random(Path(folder) / "layers.gguf", "F32", FEWEST_SLOTS + 2)
        pages = weight_pages(GgufFile.read(path), PAGE)
        room = n_bytes(pages.others) + FEWEST_SLOTS * max(pages.layer_bytes)
        plan = plan_residency(pages.layer_bytes, n_bytes(pages.others), room, FEWEST_SLOTS)
        assert plan, "the room is that of the slots"
        ring = RingSettings(n_slots=FEWEST_SLOTS)
        config = ContextConfig(256, n_seq_max=1, n_batch=8, n_outputs=1, settings=replace(settings, threads=1))
        try:
            with (
                LlamaModel(path) as model,
                StreamedWeights(pages, plan, ring, Pressure(0, lambda: 0)) as weights,
                LlamaContext(model, config, weights) as context,
            ):
                return self_check.computed_otherwise(context, weights)
        except CannotStreamError as reason:
            return str(reason)
