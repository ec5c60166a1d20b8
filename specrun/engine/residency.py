"""The target's context, with the weights that do not fit into RAM streamed by specrun where that is possible."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.weight_pages import WeightPages, n_bytes, weight_pages
from specrun.engine.placing import placement_request
from specrun.engine.run_options import RunOptions
from specrun.errors import ModelFileError
from specrun.hardware.device import Device, offload_devices
from specrun.hardware.placement import place
from specrun.hardware.pressure import Pressure
from specrun.hardware.residency import FEWEST_SLOTS, ResidencyPlan, RingSettings, plan_residency, room_for_weights
from specrun.llama import LlamaModel, devices
from specrun.llama.context import ContextConfig, LlamaContext
from specrun.llama.streaming import self_check
from specrun.llama.streaming.address_space import PAGE
from specrun.llama.streaming.refusal import CannotStreamError
from specrun.llama.streaming.streamed_weights import StreamedWeights
from specrun.llama_settings import LlamaSettings


@dataclass(frozen=True)
class Streaming:
    """What is to be streamed.

    ring: how it is read.
    pages, plan, pressure: None if everything fits, if the user does not want it, or if it is impossible.
    notice: a sentence for the user if it is impossible.
    """

    ring: RingSettings = field(default_factory=RingSettings)
    pages: WeightPages | None = None
    plan: ResidencyPlan | None = None
    pressure: Pressure | None = None
    notice: str | None = None


def plan_streaming(options: RunOptions, settings: LlamaSettings) -> Streaming:
    """What is to be streamed, by the memory that is free before the models are loaded.

    settings: those that the target will be loaded with.
    """
    if options.residency == "off":
        return Streaming()
    gpus = offload_devices(devices.devices())
    pressure = Pressure.watch()
    try:
        room = room_in_ram(options, gpus)
        if room is None:
            return Streaming()
        file = GgufFile.read(options.target)
        _check(file, settings, gpus)
        pages = weight_pages(file, PAGE)
        # When the settings were measured there may have been more memory.
        for n_slots in range(options.ring.n_slots, FEWEST_SLOTS - 1, -1):
            plan = plan_residency(pages.layer_bytes, n_bytes(pages.others), room, n_slots)
            if plan:
                break
        if plan is None:
            raise CannotStreamError("what every pass needs leaves no memory for two layers; try a smaller --ctx-size")
    except ModelFileError:
        return Streaming()  # loading the file says what is wrong with it
    except CannotStreamError as reason:
        return Streaming(notice=_notice(reason))
    ring = replace(options.ring, n_slots=plan.n_slots)
    return Streaming(ring, pages, plan, pressure) if plan.streamed else Streaming()


def target_context(
    model: LlamaModel, config: ContextConfig, streaming: Streaming, resources: ExitStack
) -> tuple[LlamaContext, str | None]:
    """The context, and a notice if its weights should be streamed and cannot be.

    resources: frees what is made here.
    """
    notice = streaming.notice
    if streaming.pages and streaming.plan and streaming.pressure:
        try:
            with ExitStack() as made:
                weights = StreamedWeights(streaming.pages, streaming.plan, streaming.ring, streaming.pressure)
                made.enter_context(weights)
                context = made.enter_context(LlamaContext(model, config, weights))
                self_check.stream(context, weights)
                resources.push(made.pop_all())
                return context, None
        except CannotStreamError as reason:
            notice = _notice(reason)
    return resources.enter_context(LlamaContext(model, config)), notice


def _notice(reason: CannotStreamError) -> str:
    return f"weights that do not fit are left to the system's page cache, because {reason}"


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
        raise CannotStreamError("weights that --repack re-orders lie in other memory")
    if settings.load_mode not in (None, "auto", "mmap"):
        raise CannotStreamError(f"--load-mode {settings.load_mode} does not map them")
