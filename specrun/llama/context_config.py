"""How a llama.cpp context is set up, and llama.cpp's parameters for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import llama_cpp

from specrun.hardware.cpu import usable_cores
from specrun.llama_settings import UNDECIDED, CacheType, FlashAttention, LlamaSettings

# enum ggml_type
_CACHE_TYPES: dict[CacheType, int] = {
    "f32": 0, "f16": 1, "bf16": 30, "q8_0": 8, "q4_0": 2, "q4_1": 3, "iq4_nl": 20, "q5_0": 6, "q5_1": 7
}  # fmt: skip
_FLASH_ATTENTION: dict[FlashAttention, int] = {
    "on": llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED,
    "off": llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED,
    "auto": llama_cpp.LLAMA_FLASH_ATTN_TYPE_AUTO,
}


@dataclass(frozen=True)
class ContextConfig:
    """How a context is set up."""

    n_ctx: int  # cells of the KV cache
    n_seq_max: int  # sequence ids, so the most leaf paths of a tree
    n_batch: int  # most tokens of one pass
    n_outputs: int  # most rows of logits of one pass
    settings: LlamaSettings = UNDECIDED  # threads, sizes of prompt passes, flash attention, cache types
    n_snapshots: int = 0  # recurrent states that are kept of a pass, where the architecture can
    lanes: tuple[int, ...] = ()  # where several texts share the context: most leaf paths of the trees of each

    @property
    def n_call(self) -> int:
        """Most tokens that llama.cpp gets at once: the tokens of several prompt passes, if the settings ask for it.

        llama.cpp cuts them every `n_batch` tokens. Where that is more than a pass over a prompt has, because trees need
        the room, it gets one pass at a time: which tokens share a pass must not depend on the plan.
        """
        is_cut_alike = self.n_batch == self.settings.prompt_pass
        return max(self.n_batch, (self.settings.batch_size or 0) // self.n_batch * self.n_batch if is_cut_alike else 0)


def context_parameters(config: ContextConfig) -> Any:
    """What llama.cpp takes, for a model without a head whose weights are not streamed."""
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = config.n_ctx
    params.n_batch, params.n_ubatch = config.n_call, config.n_batch
    params.n_seq_max = config.n_seq_max
    params.n_rs_seq = config.n_snapshots
    # llama.cpp reserves memory for this many rows of logits; n_batch rows would be 311 MB with 152k tokens.
    params.n_outputs_max = max(config.n_outputs, config.n_seq_max)
    settings = config.settings
    params.n_threads = settings.threads or usable_cores()
    params.n_threads_batch = settings.threads_batch or params.n_threads
    params.type_k = _CACHE_TYPES[settings.type_k or "f16"]
    params.type_v = _CACHE_TYPES[settings.type_v or "f16"]
    params.flash_attn_type = _FLASH_ATTENTION[settings.flash_attn or "on"]
    params.op_offload = settings.op_offload is not False
    params.kv_unified = True
    params.swa_full = True  # a branch may need cells that a sliding window would drop
    params.no_perf = True
    return params
