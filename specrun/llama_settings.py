"""llama.cpp's settings for loading and running one model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

CacheType = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"]
FlashAttention = Literal["on", "off", "auto"]
LoadMode = Literal["auto", "none", "mmap", "mlock", "mmap+mlock"]
TiledKernels = Literal["auto", "never", "always"]
SplitMode = Literal["none", "layer", "row"]
ResidencyChoice = Literal["auto", "off"]  # of specrun, as llama.cpp knows nothing of it

ALL_LAYERS = -1  # the value of gpu_layers and n_cpu_moe that means all layers, as in llama.cpp
DEFAULT_UBATCH = 512  # tokens of a micro-batch, by llama.cpp's own default
FLOAT_CACHE_TYPES: tuple[CacheType, ...] = ("f32", "f16", "bf16")


@dataclass(frozen=True)
class LlamaSettings:
    """Names and meanings are those of llama.cpp's options. None means "not decided"; the default is then used.

    Re-ordered weights (`repack`) are computed faster, but they lie in memory that cannot be streamed from disk, and the
    last bits of the logits then depend on the size of the pass.
    """

    threads: int | None = None  # CPU threads of a pass over one token; default: the number of physical cores
    threads_batch: int | None = None  # CPU threads of larger passes; default: as `threads`
    batch_size: int | None = None  # tokens of a prompt that llama.cpp gets at once; default: as `ubatch_size`
    ubatch_size: int | None = None  # tokens of a prompt that it computes at once; default: 512
    repack: bool | None = None  # whether weights are re-ordered for this CPU; default: no
    file_order_from: int | None = None  # tokens from which passes take `repack`ed weights from the file; default: none
    tiled: TiledKernels | None = None  # whether tiled kernels compute K- and i-quants; default: passes of 8 or more
    tiled_from: int | None = None  # tokens from which they compute weights that are not `repack`ed; default: 8
    flash_attn: FlashAttention | None = None  # default: on
    type_k: CacheType | None = None  # type of K in the KV cache; default: f16
    type_v: CacheType | None = None  # type of V in the KV cache; default: f16
    load_mode: LoadMode | None = None  # default: auto, which maps the file unless a device cannot use the mapping
    op_offload: bool | None = None  # whether large passes compute weights that lie in RAM on the GPU; default: True
    offload_min_batch: int | None = None  # tokens from which a pass is large, settled once a process; default: 32
    rpc: tuple[str, ...] | None = None  # HOST:PORT of llama.cpp's RPC servers that may hold layers; default: none
    gpu_layers: int | None = None  # layers in VRAM, counted from the last; the output counts as a layer; default: 0
    n_cpu_moe: int | None = None  # number of leading layers whose experts stay in RAM; default: 0
    split_mode: SplitMode | None = None  # how several GPUs share the layers; default: layer
    tensor_split: tuple[float, ...] | None = None  # share of each GPU; default: in proportion to free memory
    main_gpu: int | None = None  # index of the only GPU used with split_mode `none`; default: 0

    @property
    def prompt_pass(self) -> int:
        """Tokens of one pass over a prompt. As in llama.cpp, a batch bounds its micro-batches."""
        n = self.ubatch_size or DEFAULT_UBATCH
        return min(n, self.batch_size or n)

    @property
    def divides_attention(self) -> bool:
        """Whether llama.cpp's flash attention sums a plain pass in as many parts as there are threads, after 256 cells
        and more, so that a token's last bits depend on their number (docs/exactness.md).
        """
        k, v = self.type_k or "f16", self.type_v or "f16"
        return self.flash_attn != "off" and k == v and k in ("f16", "f32")

    def over(self, others: LlamaSettings) -> LlamaSettings:
        """These settings, with the value of `others` for every setting that is None here."""
        return replace(others, **{name: value for name, value in vars(self).items() if value is not None})


UNDECIDED = LlamaSettings()
