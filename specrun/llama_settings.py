"""How llama.cpp holds and runs one model: its knobs, as far as they are decided."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal

CacheType = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"]
FlashAttention = Literal["on", "off", "auto"]
LoadMode = Literal["auto", "none", "mmap", "mlock", "mmap+mlock"]
SplitMode = Literal["none", "layer", "row"]

ALL_LAYERS = -1
FLOAT_CACHE_TYPES: tuple[CacheType, ...] = ("f32", "f16", "bf16")


@dataclass(frozen=True)
class LlamaSettings:
    """Names and meanings are those of llama.cpp's options; None is "not decided", and runs as said here.

    threads: CPU threads of a pass over one token; the physical cores. threads_batch: of larger passes; as `threads`.
    repack: re-order weights for this CPU, in memory that cannot stream from disk, with kernels whose last bits depend
    on the size of the pass; off. flash_attn: on. type_k, type_v: of the KV cache; f16.
    load_mode: `auto` maps the file, unless a device cannot. op_offload: let the GPU multiply weights that lie in RAM,
    in passes of 32 tokens and more; on.
    gpu_layers: layers in VRAM, from the last, the output counted as one; ALL_LAYERS; none. n_cpu_moe: keep the experts
    of the first so many layers in RAM; ALL_LAYERS; none. split_mode: how several GPUs share the layers; `layer`.
    tensor_split: share of each GPU; by free memory. main_gpu: the only one with split_mode `none`; the first.
    """

    threads: int | None = None
    threads_batch: int | None = None
    repack: bool | None = None
    flash_attn: FlashAttention | None = None
    type_k: CacheType | None = None
    type_v: CacheType | None = None
    load_mode: LoadMode | None = None
    op_offload: bool | None = None
    gpu_layers: int | None = None
    n_cpu_moe: int | None = None
    split_mode: SplitMode | None = None
    tensor_split: tuple[float, ...] | None = None
    main_gpu: int | None = None

    def over(self, others: LlamaSettings) -> LlamaSettings:
        """These settings where they are decided, `others` elsewhere."""
        decided = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(others, **{name: value for name, value in decided.items() if value is not None})


UNDECIDED = LlamaSettings()
