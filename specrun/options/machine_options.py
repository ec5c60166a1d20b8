"""The options of the help panel "Machine": how llama.cpp holds and runs the two models."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

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
from specrun.options.expand import flag, option

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

_option = partial(option, rich_help_panel="Machine", show_default=False, usual=False)
_flag = partial(flag, rich_help_panel="Machine", usual=False)
_count = partial(_option, None, "N")
_layer_count = partial(_option, None, "N|auto|all")
_cache_type = partial(_option, None, "TYPE")


@dataclass(frozen=True)
class MachineOptions:
    """The options as the user gave them, named as llama.cpp's. With None, specrun chooses for this machine."""

    # fmt: off
    ctx_size: int | None = _count(
        "Most tokens of prompt and answer together. By default the model's, at most 4096.", "-c", usual=True
    )
    threads: int | None = _count("Number of CPU threads. By default as many as free physical cores.", "-t", usual=True)
    threads_batch: int | None = _count("CPU threads for passes over several tokens. By default as --threads.", "-tb")
    batch_size: int | None = _count(
        "Tokens of a prompt that llama.cpp gets at once; several GPUs can work on the micro-batches of one batch "
        "at the same time. By default as --ubatch-size.", "-b"
    )
    ubatch_size: int | None = _count(
        "Tokens of a prompt that are computed at once, for which all weights are read once. By default as "
        "`specrun tune` chose; untuned 512.", "-ub"
    )
    gpu_layers: str | None = _layer_count(
        "Layers of the target that are kept in VRAM. By default as many as fit.", "-ngl", usual=True
    )
    gpu_layers_draft: str | None = _layer_count(
        "Layers of the draft that are kept in VRAM. By default all, if they fit.", "-ngld"
    )
    n_cpu_moe: int | None = _count("Keep the expert weights of the target's first N layers in RAM.", "-ncmoe")
    cpu_moe: bool = _flag("Keep the expert weights of all layers in RAM.", "-cmoe")
    split_mode: SplitMode | None = _option(
        None, "none|layer|row",
        "How several GPUs share the target: one GPU only, whole layers (the default), or rows of matrices.", "-sm"
    )
    tensor_split: str | None = _option(
        None, "N,N,...", "Share of the target that each GPU gets, for example 3,1.", "-ts"
    )
    main_gpu: int | None = _option(None, "INDEX", "The GPU that --split-mode none uses, from 0.", "-mg")
    cache_type_k: CacheType | None = _cache_type(f"Type of the target's K cache. By default f16. {_TYPES}", "-ctk")
    cache_type_v: CacheType | None = _cache_type(
        "Type of the target's V cache. By default bf16 on a CPU, else f16.", "-ctv"
    )
    cache_type_k_draft: CacheType | None = _cache_type(
        "Type of the draft's K cache. Same values and default as the target's.", "-ctkd"
    )
    cache_type_v_draft: CacheType | None = _cache_type(
        "Type of the draft's V cache. Same values and default as the target's.", "-ctvd"
    )
    flash_attn: FlashAttention | None = _option(
        None, "on|off|auto",
        "Whether to use flash attention. By default on, unless a CPU computes heads of 32 numbers or fewer, or a GPU "
        "that holds layers has no kernel for the model's heads.", "-fa"
    )
    repack: bool | None = _option(
        None, None, "Reorder weights for this CPU: often faster, but large and small passes then differ in a token's "
        "last bits. By default as `specrun tune` chose; untuned, where all weights are in RAM and are not bit-exact "
        "anyway.", "--repack/--no-repack"
    )
    load_mode: LoadMode | None = _option(
        None, "MODE", "How weights are read: none (into memory), mmap (mapped from the file), mlock (kept from being "
        "swapped out), mmap+mlock, or auto (mmap if possible).", "-lm"
    )
    residency: ResidencyChoice = _option(
        "auto", "auto|off", "Whether specrun itself reads weights that do not fit into RAM, ahead of their use (auto, "
        "where it can), or leaves that to the system's page cache (off)."
    )
    rpc: str | None = _option(
        None, "HOST:PORT,...", "Put layers of the target that this machine's GPUs have no room for on other machines, "
        "where llama.cpp's rpc-server runs. Nothing is encrypted: in trusted networks only."
    )
    no_op_offload: bool = _flag("Multiply weights that are in RAM on the CPU only, never on the GPU.")
    exact: bool = _flag("Pad every pass, also of plain decoding, to sizes that give a token's logits the same bits.")
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
            try:
                is_name = bool(host.encode("idna"))  # as Python asks for it
            except UnicodeError:
                is_name = False
            if not is_name or not (port.isascii() and port.isdecimal() and 0 < int(port) <= _MAX_PORT):
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
