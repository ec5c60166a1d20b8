"""The target's context, with the weights that do not fit into RAM streamed by specrun where that is possible."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack

from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.weight_pages import WeightPages, n_bytes, weight_pages
from specrun.engine.placing import placement_request
from specrun.engine.run_options import RunOptions
from specrun.errors import ModelFileError
from specrun.hardware.device import Device, offload_devices
from specrun.hardware.placement import place
from specrun.hardware.residency import Residency, ResidencyPlan, plan_residency, room_for_weights
from specrun.llama import LlamaModel, devices
from specrun.llama.context import ContextConfig, LlamaContext
from specrun.llama.streaming import self_check
from specrun.llama.streaming.address_space import PAGE
from specrun.llama.streaming.refusal import CannotStreamError
from specrun.llama.streaming.streamed_weights import StreamedWeights
from specrun.llama_settings import LlamaSettings


def target_context(
    model: LlamaModel, config: ContextConfig, options: RunOptions, resources: ExitStack
) -> tuple[LlamaContext, Residency, str | None]:
    """The context, how the weights are held, and a notice if they should be streamed and cannot be.

    config: with the settings that the model was loaded with. resources: frees what is made here.
    """
    notice = None
    try:
        if planned := _plan(options, config.settings):
            with ExitStack() as made:
                weights = made.enter_context(StreamedWeights(*planned))
                context = made.enter_context(LlamaContext(model, config, weights))
                self_check.stream(context, weights)
                resources.push(made.pop_all())
                return context, weights.residency, None
    except CannotStreamError as reason:
        notice = f"weights that do not fit are left to the system's page cache, because {reason}"
    return resources.enter_context(LlamaContext(model, config)), Residency(), notice


def _plan(options: RunOptions, settings: LlamaSettings) -> tuple[WeightPages, ResidencyPlan] | None:
    """What to stream; None if everything fits, or the user does not want it. Raises CannotStreamError."""
    if options.residency == "off":
        return None
    gpus = offload_devices(devices.devices())
    try:
        room = room_in_ram(options, gpus)
        if room is None:
            return None
        file = GgufFile.read(options.target)
        _check(file, settings, gpus)
        pages = weight_pages(file, PAGE)
    except ModelFileError as error:  # llama.cpp has loaded it, so it is one that specrun cannot read
        raise CannotStreamError(str(error)) from error
    plan = plan_residency(pages.layer_bytes, n_bytes(pages.others), room)
    if plan is None:
        raise CannotStreamError("what every pass needs leaves no memory for two layers; try a smaller --ctx-size")
    return (pages, plan) if plan.streamed else None


def room_in_ram(options: RunOptions, gpus: Sequence[Device]) -> int | None:
    """Bytes of RAM that the target's weights may take; None if they fit. Raises ModelFileError."""
    placement = place(placement_request(options, gpus))
    return room_for_weights(placement) if placement.regime == "streamed" else None


def _check(file: GgufFile, settings: LlamaSettings, gpus: Sequence[Device]) -> None:
    """Raises CannotStreamError if the weights are of a kind, or in a place, that the ring does not know."""
    if sys.platform != "linux":
        raise CannotStreamError("streaming them needs Linux")
    if gpus:
        raise CannotStreamError("they are streamed only where llama.cpp has no GPU")
    if file.n_experts:
        raise CannotStreamError("a pass needs only some experts of this model, and streaming would read all")
    if settings.repack:
        raise CannotStreamError("--repack puts them into other memory")
    if settings.load_mode not in (None, "auto", "mmap"):
        raise CannotStreamError(f"--load-mode {settings.load_mode} does not map them")
