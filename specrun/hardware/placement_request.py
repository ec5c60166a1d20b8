"""What is to be placed, and the room for it."""

from __future__ import annotations

from dataclasses import dataclass

from specrun.hardware.device import Device
from specrun.hardware.model_shape import ModelShape
from specrun.llama_settings import ALL_LAYERS, UNDECIDED, LlamaSettings

# Left free on every GPU: what drivers, libraries and other programs take beside what is planned here.
MARGIN_SHARE = 0.05
MARGIN_BYTES = 300_000_000


@dataclass(frozen=True)
class PlacementRequest:
    """Two models, and where they may go. Bytes and tokens.

    gpus: those that llama.cpp divides layers among, in its order, with free memory as it is before loading.
    ram_bytes: RAM that can still be taken. n_tokens: largest pass. n_rows: most rows of logits of a pass.
    settings, draft_settings: what the user decided, which is kept even where it does not fit.
    margin_bytes: to leave free on each GPU beyond the usual margin.
    """

    target: ModelShape
    draft: ModelShape | None
    gpus: tuple[Device, ...]
    ram_bytes: int
    n_tokens: int
    n_rows: int
    settings: LlamaSettings = UNDECIDED
    draft_settings: LlamaSettings = UNDECIDED
    margin_bytes: int = 0

    def budget(self, gpu: int) -> int:
        """Bytes of a GPU that may be planned with."""
        free = self.gpus[gpu].free_bytes
        return max(int(free * (1 - MARGIN_SHARE)) - MARGIN_BYTES - self.margin_bytes, 0)

    def usable_gpus(self) -> list[int]:
        """Indices of the GPUs that the user lets llama.cpp use."""
        if self.settings.split_mode == "none":
            return [self.settings.main_gpu or 0][: len(self.gpus)]
        return list(range(len(self.gpus)))


def decided_units(settings: LlamaSettings, shape: ModelShape) -> int | None:
    """The user's number of layers in VRAM, at most all; None where it is left open."""
    if settings.gpu_layers is None:
        return None
    return shape.n_units if settings.gpu_layers == ALL_LAYERS else min(settings.gpu_layers, shape.n_units)


def decided_cpu_moe(settings: LlamaSettings, shape: ModelShape) -> int | None:
    """The user's number of layers whose experts stay in RAM, at most all; None where it is left open."""
    if settings.n_cpu_moe is None:
        return None
    n_layers = len(shape.layers)
    return n_layers if settings.n_cpu_moe == ALL_LAYERS else min(settings.n_cpu_moe, n_layers)
