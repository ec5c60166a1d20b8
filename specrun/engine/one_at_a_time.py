"""Where several texts cannot share the target's passes."""

from __future__ import annotations

from specrun.catalog.heads import Head
from specrun.engine.run_options import RunOptions
from specrun.llama import LlamaModel
from specrun.llama_settings import LlamaSettings


def why_one_at_a_time(
    options: RunOptions, settings: LlamaSettings, target: LlamaModel, draft: LlamaModel | None, head: Head | None
) -> str | None:
    """Why texts are written one after the other; None where several can be written at the same time.

    settings: those that are decided for the target. draft: the model or the head that drafts.
    """
    for model in (target, draft):
        if model and model.is_recurrent:
            return f"{model.name} has recurrent layers, which keep one state"
        if model and model.has_window:
            return f"{model.name} has layers that attend to a window only, whose cells are given away"
    if head:
        return "a head drafts from the states of one text"
    if options.pads and settings.gpu_layers:
        return "on a GPU a token's bits depend on the cells in front of it"
    return None
