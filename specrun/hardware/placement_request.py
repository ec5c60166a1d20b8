"""The input of placement: two models, and the memory that is free for them."""

from __future__ import annotations

from dataclasses import dataclass

from specrun.hardware.device import Device
from specrun.hardware.model_shape import ModelShape
from specrun.llama_settings import ALL_LAYERS, UNDECIDED, LlamaSettings

# On every GPU this share of its free memory and these bytes stay free, for drivers, libraries and other programs.
# MARGIN_BYTES also stay free in RAM.
MARGIN_SHARE = 0.05
MARGIN_BYTES = 300_000_000


@dataclass(frozen=True)
class PlacementRequest:
    """Two models, and the memory that is free before they are loaded."""

    target: ModelShape
    draft: ModelShape | None
    gpus: tuple[Device, ...]  # that llama.cpp divides layers among, in its order
    ram_bytes: int  # RAM that can still be allocated
    n_tokens: int  # of the largest pass
    n_rows: int  # rows of logits, the largest number in a pass
    settings: LlamaSettings = UNDECIDED  # that the user decided for the target; kept even if they do not fit
    draft_settings: LlamaSettings = UNDECIDED  # that the user decided for the draft
    states_bytes: int = 0  # in RAM, for the hidden states that a head reads
    margin_bytes: int = 0  # to keep free on each GPU beyond the usual margin

    def budget(self, gpu: int) -> int:
        """Bytes of the GPU with index `gpu` that placement may use."""
        free = self.gpus[gpu].free_bytes
        if self.gpus[gpu].shares_ram:
            n_sharing = sum(one.shares_ram for one in self.gpus)
            free = min(free, max(self.ram_bytes - self._never_on_gpus(), 0) // n_sharing)
        return max(int(free * (1 - MARGIN_SHARE)) - MARGIN_BYTES - self.margin_bytes, 0)

    def _never_on_gpus(self) -> int:
        """Bytes of RAM that are needed beside GPUs which use the RAM as well, so that the other layers can be streamed.

        Streaming takes two layers. Where all of them fit, these two may lie there for good: it is the same memory.
        """
        target = self.target
        layers = (sum(parts) for parts in zip(target.layers, target.experts, strict=True))
        beside = target.activations * self.n_tokens + target.logits(self.n_rows) + sum(target.kv) + self.states_bytes
        return 2 * max(layers, default=0) + target.embedding + beside

    def gpu_logits(self, shape: ModelShape) -> int:
        """Bytes of a pass's logits on a GPU beyond the compute buffer, whose memory they reuse."""
        return max(shape.logits(self.n_rows) - shape.gpu_activations * self.n_tokens, 0)

    def usable_gpus(self) -> list[int]:
        """Indices of the GPUs that llama.cpp may use with the user's split mode."""
        if self.settings.split_mode == "none":
            return [self.settings.main_gpu or 0][: len(self.gpus)]
        return list(range(len(self.gpus)))

    def local_gpus(self) -> list[int]:
        """The indices in `usable_gpus` of GPUs that are in this machine."""
        return [gpu for gpu in self.usable_gpus() if not self.gpus[gpu].is_remote]


def decided(n: int | None, most: int) -> int | None:
    """The number of layers that the user decided, of `most` layers; None if the user did not say."""
    return n if n is None else most if n == ALL_LAYERS else min(n, most)
