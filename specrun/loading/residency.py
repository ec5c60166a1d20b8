"""The target's context, with the weights that do not fit into RAM streamed by specrun where that is possible."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

from specrun.catalog.layer_states import expert_pages, n_bytes, weight_pages
from specrun.hardware.fit import plan_residency, room_for_weights
from specrun.hardware.memory import Pressure
from specrun.hardware.placement import Placement
from specrun.llama import LlamaModel
from specrun.llama.context import ContextConfig, LlamaContext
from specrun.llama.streaming import address_space, self_check
from specrun.llama.streaming.address_space import PAGE, CannotStreamError
from specrun.llama.streaming.cached_experts import CachedExperts
from specrun.llama.streaming.streamed_weights import StreamedWeights
from specrun.llama_settings import LlamaSettings
from specrun.loading.placing import Here, LoadPlan

Reader = StreamedWeights | CachedExperts


@dataclass(frozen=True)
class Streaming:
    """What is to be streamed: nothing if all fits, if the user does not want it, or if it is impossible."""

    # Makes what reads the weights of a loaded model, or raises CannotStreamError.
    reader: Callable[[], Reader] | None = None
    notice: str | None = None  # a sentence for the user if it is impossible

    def loadable(self, target: LlamaSettings, draft: LlamaSettings) -> tuple[LlamaSettings, LlamaSettings]:
        """The settings of target and draft with which the target's weights can be streamed.

        Beside layers in VRAM its file is mapped, and no weights are copied to the GPU when nobody knows of it. A draft
        with a file of its own is not mapped, if the user does not insist on it: memory is nearly full, and the system
        would give up its pages between two of its passes.
        """
        if self.reader and target.gpu_layers:
            target = replace(target, op_offload=False, load_mode="mmap")
        return target, draft.over(LlamaSettings(load_mode="none")) if self.reader else draft


def plan_streaming(plan: LoadPlan, settings: LlamaSettings, with_mtp: bool = False) -> Streaming:
    """What is to be streamed. settings: of the target, with its places."""
    room = room_in_ram(plan.placement) if plan.options.residency != "off" else None
    if room is None:
        return Streaming()
    try:
        return Streaming(_reader(plan.here, settings, with_mtp, room))
    except CannotStreamError as reason:
        return Streaming(notice=_notice(reason))


def _reader(here: Here, settings: LlamaSettings, with_mtp: bool, room: int) -> Callable[[], Reader] | None:
    """What makes the reader of the weights that do not fit into `room` bytes; None if all of them fit. Raises
    CannotStreamError for weights of a kind, or in a place, that specrun cannot stream.
    """
    address_space.check_system()
    if settings.repack:
        raise CannotStreamError("weights that --repack re-orders lie in other memory")
    if settings.load_mode not in (None, "auto", "mmap"):
        raise CannotStreamError(f"--load-mode {settings.load_mode} does not map them")
    file, pressure = here.target, Pressure.watch(here.ram_bytes)
    if file.n_experts:
        experts = expert_pages(file, PAGE, with_mtp, settings)
        if not experts.layers:
            raise CannotStreamError("its experts lie in the file in an unknown way")
        if n_bytes(experts.dense) > room:
            raise CannotStreamError("what every token needs beside experts does not fit; try a smaller --ctx-size")
        return partial(CachedExperts, experts, file.n_experts_used, room, pressure)
    pages = weight_pages(file, PAGE, with_mtp, settings)
    plan = plan_residency(pages.layer_bytes, n_bytes(pages.others), room)
    if plan is None:
        raise CannotStreamError("what every pass needs leaves no memory for two layers; try a smaller --ctx-size")
    return partial(StreamedWeights, pages, plan, pressure) if plan.streamed else None


def target_context(
    model: LlamaModel, config: ContextConfig, streaming: Streaming, resources: ExitStack, notices: list[str]
) -> LlamaContext:
    """The context, which `resources` frees. `notices` get why its weights cannot be streamed if they should be."""
    notices += [streaming.notice] if streaming.notice else []
    if streaming.reader:
        try:
            with ExitStack() as made:
                weights = streaming.reader()
                made.enter_context(weights)
                context = made.enter_context(LlamaContext(model, config, weights))
                self_check.stream(context, weights)
                resources.push(made.pop_all())
                return context
        except CannotStreamError as reason:
            notices.append(_notice(reason))
    return resources.enter_context(LlamaContext(model, config))


def _notice(reason: CannotStreamError) -> str:
    return f"weights that do not fit are left to the system's page cache, because {reason}"


def room_in_ram(placement: Placement) -> int | None:
    """Bytes of RAM that the target's weights may take; None if they fit."""
    return room_for_weights(placement) if placement.regime == "streamed" else None
