"""The options of the help panel "Machine": how llama.cpp holds and runs the two models."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, get_args

import typer

from specrun.errors import UsageError
from specrun.llama_settings import (
    ALL_LAYERS,
    FLOAT_CACHE_TYPES,
    CacheType,
    FlashAttention,
    LlamaSettings,
    LoadMode,
    ResidencyChoice,
    SplitMode,
)

_TYPES = f"One of {', '.join(get_args(CacheType))}."
_MAX_LAYERS = 10_000  # far beyond any model
_MAX_PORT = 65535
_MAX_SERVERS = 16  # of llama.cpp
# The smallest and the largest value of options with a number; the largest are far beyond any machine or use.
_RANGES = {
    "threads": (1, 1024),
    "threads_batch": (1, 1024),
    "batch_size": (1, 65536),
    "ubatch_size": (1, 65536),
    "n_cpu_moe": (0, _MAX_LAYERS),
    "main_gpu": (0, 1024),
}
# The options that set a field of the same name for both models.
_SHARED = (*_RANGES.keys() - {"n_cpu_moe"}, "repack", "flash_attn", "load_mode", "split_mode")

_option = partial(typer.Option, rich_help_panel="Machine", show_default=False)
_count = partial(_option, metavar="N")
_layer_count = partial(_option, metavar="N|auto|all")
_cache_type = partial(_option, metavar="TYPE")


@dataclass(frozen=True)
class MachineOptions:
    """The options as the user gave them, named as llama.cpp's. With None, specrun chooses for this machine."""

    # fmt: off
    ctx_size: Annotated[int | None, _count(
        "--ctx-size", "-c", help="Most tokens of prompt and answer together. By default the model's, at most 4096."
    )] = None
    threads: Annotated[int | None, _count(
        "--threads", "-t", help="Number of CPU threads. By default as many as physical cores."
    )] = None
    threads_batch: Annotated[int | None, _count(
        "--threads-batch", "-tb", help="CPU threads for passes over several tokens. By default as --threads."
    )] = None
    batch_size: Annotated[int | None, _count(
        "--batch-size", "-b",
        help="Tokens of a prompt that llama.cpp gets at once; several GPUs can work on the micro-batches of one batch "
        "at the same time. By default as --ubatch-size."
    )] = None
    ubatch_size: Annotated[int | None, _count(
        "--ubatch-size", "-ub",
        help="Tokens of a prompt that are computed at once, for which all weights are read once. By default as "
        "`specrun tune` chose; untuned 512."
    )] = None
    gpu_layers: Annotated[str | None, _layer_count(
        "--gpu-layers", "-ngl", help="Layers of the target that are kept in VRAM. By default as many as fit."
    )] = None
    gpu_layers_draft: Annotated[str | None, _layer_count(
        "--gpu-layers-draft", "-ngld", help="Layers of the draft that are kept in VRAM. By default all, if they fit."
    )] = None
    n_cpu_moe: Annotated[int | None, _count(
        "--n-cpu-moe", "-ncmoe", help="Keep the expert weights of the target's first N layers in RAM."
    )] = None
    cpu_moe: Annotated[bool, _option(
        "--cpu-moe", "-cmoe", help="Keep the expert weights of all layers in RAM."
    )] = False
    split_mode: Annotated[SplitMode | None, _option(
        "--split-mode", "-sm", metavar="none|layer|row",
        help="How several GPUs share the target: one GPU only, whole layers (the default), or rows of matrices."
    )] = None
    tensor_split: Annotated[str | None, _option(
        "--tensor-split", "-ts", metavar="N,N,...", help="Share of the target that each GPU gets, for example 3,1."
    )] = None
    main_gpu: Annotated[int | None, _option(
        "--main-gpu", "-mg", metavar="INDEX", help="The GPU that --split-mode none uses, from 0."
    )] = None
    cache_type_k: Annotated[CacheType | None, _cache_type(
        "--cache-type-k", "-ctk", help=f"Type of the target's K cache. By default f16. {_TYPES}"
    )] = None
    cache_type_v: Annotated[CacheType | None, _cache_type(
        "--cache-type-v", "-ctv", help="Type of the target's V cache. By default bf16 on a CPU, else f16."
    )] = None
    cache_type_k_draft: Annotated[CacheType | None, _cache_type(
        "--cache-type-k-draft", "-ctkd", help="Type of the draft's K cache. Same values and default as the target's."
    )] = None
    cache_type_v_draft: Annotated[CacheType | None, _cache_type(
        "--cache-type-v-draft", "-ctvd", help="Type of the draft's V cache. Same values and default as the target's."
    )] = None
    flash_attn: Annotated[FlashAttention | None, _option(
        "--flash-attn", "-fa",
        help="Whether to use flash attention. By default on, unless a trial on this CPU was faster without.",
    )] = None
    repack: Annotated[bool | None, _option(
        "--repack/--no-repack",
        help="Reorder weights for this CPU: often faster, but large and small passes then differ in a token's last "
        "bits. By default as `specrun tune` chose; untuned, where all weights are in RAM and are not bit-exact anyway."
    )] = None
    load_mode: Annotated[LoadMode | None, _option(
        "--load-mode", "-lm", metavar="MODE",
        help="How weights are read: none (into memory), mmap (mapped from the file), mlock (kept from being swapped "
        "out), mmap+mlock, or auto (mmap if possible)."
    )] = None
    residency: Annotated[ResidencyChoice, _option(
        "--residency", metavar="auto|off",
        help="Whether specrun itself reads weights that do not fit into RAM, ahead of their use (auto, where it can), "
        "or leaves that to the system's page cache (off)."
    )] = "auto"
    rpc: Annotated[str | None, _option(
        "--rpc", metavar="HOST:PORT,...",
        help="Put layers of the target that this machine's GPUs have no room for on other machines, where llama.cpp's "
        "rpc-server runs. Nothing is encrypted: in trusted networks only."
    )] = None
    no_op_offload: Annotated[bool, _option(
        "--no-op-offload", help="Multiply weights that are in RAM on the CPU only, never on the GPU."
    )] = False
    exact: Annotated[bool, _option(
        "--exact", help="Pad every pass, also of plain decoding, to sizes that give a token's logits the same bits."
    )] = False
    # fmt: on

    def target_settings(self) -> LlamaSettings:
        """What is decided for the target. Raises UsageError for impossible values and combinations."""
        return LlamaSettings(**self._both(""), n_cpu_moe=self._n_cpu_moe(), tensor_split=self._tensor_split())

    def draft_settings(self) -> LlamaSettings:
        """What is decided for the draft. Raises UsageError for impossible values and combinations."""
        return LlamaSettings(**self._both("_draft"))

    def _both(self, suffix: str) -> dict[str, Any]:
        """The settings that both models have. suffix: ends the names of the options for one model only."""
        own = {name: getattr(self, name + suffix) for name in ("gpu_layers", "cache_type_k", "cache_type_v")}
        type_v, dashed = own["cache_type_v"], suffix.replace("_", "-")
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise UsageError(f"--{name.replace('_', '-')} must be between {least} and {most}; got {value}")
        if self.flash_attn == "off" and type_v and type_v not in FLOAT_CACHE_TYPES:
            raise UsageError(
                f"--cache-type-v{dashed} {type_v} needs flash attention; leave out --flash-attn off, "
                f"or choose one of {', '.join(FLOAT_CACHE_TYPES)}"
            )
        return {name: getattr(self, name) for name in _SHARED} | {
            "gpu_layers": _layers(f"--gpu-layers{dashed}", own["gpu_layers"]),
            "type_k": own["cache_type_k"],
            "type_v": type_v,
            "rpc": self._rpc(),
            "op_offload": False if self.no_op_offload else None,
        }

    def _rpc(self) -> tuple[str, ...] | None:
        if self.rpc is None:
            return None
        servers = tuple(dict.fromkeys(server.strip() for server in self.rpc.split(",")))
        for server in servers:
            host, _, port = server.partition(":")
            if not host or not (port.isascii() and port.isdecimal() and 0 < int(port) <= _MAX_PORT):
                raise UsageError(f"--rpc must be a list of servers such as 192.168.1.20:50052; got {self.rpc!r}")
        if len(servers) > _MAX_SERVERS:
            raise UsageError(f"--rpc must be at most {_MAX_SERVERS} servers; got {len(servers)}")
        return servers

    def _n_cpu_moe(self) -> int | None:
        if self.cpu_moe and self.n_cpu_moe is not None:
            raise UsageError("--cpu-moe and --n-cpu-moe exclude each other; choose one")
        return ALL_LAYERS if self.cpu_moe else self.n_cpu_moe

    def _tensor_split(self) -> tuple[float, ...] | None:
        if self.tensor_split is None:
            return None
        if self.split_mode == "none":
            raise UsageError("--tensor-split and --split-mode none exclude each other; choose one")
        try:
            shares = tuple(float(share) for share in self.tensor_split.replace("/", ",").split(","))
        except ValueError:
            shares = ()
        if not shares or min(shares) < 0 or not 0 < sum(shares) < float("inf"):
            raise UsageError(f"--tensor-split must be a list of shares such as 3,1; got {self.tensor_split}")
        return shares


def _layers(option: str, text: str | None) -> int | None:
    """A number of layers; None for auto, ALL_LAYERS for all or -1. Raises UsageError, which names `option`."""
    if text is None or text == "auto":
        return None
    if text in ("all", str(ALL_LAYERS)):
        return ALL_LAYERS
    if not text.isdecimal() or int(text) > _MAX_LAYERS:
        raise UsageError(f"{option} must be between 0 and {_MAX_LAYERS}, all or auto; got {text}")
    return int(text)
