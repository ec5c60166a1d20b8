"""The options of the help panel "Machine": how llama.cpp holds and runs the two models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from specrun.errors import UsageError
from specrun.llama_settings import (
    ALL_LAYERS,
    FLOAT_CACHE_TYPES,
    CacheType,
    FlashAttention,
    LlamaSettings,
    LoadMode,
    SplitMode,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

MACHINE = "Machine"

_TYPES = f"One of {', '.join(get_args(CacheType))}."
_MAX_LAYERS = 10_000
_MAX_THREADS = 1024


def _option(*names: str, **values: Any) -> Any:
    return typer.Option(*names, rich_help_panel=MACHINE, show_default=False, **values)


@dataclass(frozen=True)
class MachineOptions:
    """As the user gave them. None: not given, so chosen for this machine. Named as llama.cpp's options are."""

    ctx_size: Annotated[
        int | None,
        _option(
            "--ctx-size", "-c", metavar="N", help="Tokens of prompt and answer together; the model's, at most 4096."
        ),
    ] = None
    threads: Annotated[int | None, _option("--threads", "-t", metavar="N", help="CPU threads; the physical cores.")] = (
        None
    )
    threads_batch: Annotated[
        int | None,
        _option("--threads-batch", "-tb", metavar="N", help="CPU threads of passes over several tokens; as --threads."),
    ] = None
    gpu_layers: Annotated[
        str | None,
        _option(
            "--gpu-layers",
            "-ngl",
            metavar="N|auto|all",
            help="Layers of the target in VRAM; as many as fit.",
        ),
    ] = None
    gpu_layers_draft: Annotated[
        str | None,
        _option(
            "--gpu-layers-draft",
            "-ngld",
            metavar="N|auto|all",
            help="Layers of the draft in VRAM; all, if they fit.",
        ),
    ] = None
    n_cpu_moe: Annotated[
        int | None,
        _option("--n-cpu-moe", "-ncmoe", metavar="N", help="Keep the experts of the first N layers in RAM."),
    ] = None
    cpu_moe: Annotated[bool, _option("--cpu-moe", "-cmoe", help="Keep all experts in RAM.")] = False
    split_mode: Annotated[
        SplitMode | None,
        _option("--split-mode", "-sm", metavar="none|layer|row", help="How several GPUs share the target; by layer."),
    ] = None
    tensor_split: Annotated[
        str | None, _option("--tensor-split", "-ts", metavar="N,N,...", help="Share of each GPU, e.g. 3,1.")
    ] = None
    main_gpu: Annotated[
        int | None, _option("--main-gpu", "-mg", metavar="INDEX", help="The GPU to use with --split-mode none.")
    ] = None
    cache_type_k: Annotated[
        CacheType | None,
        _option("--cache-type-k", "-ctk", metavar="TYPE", help=f"Of the target's K cache; f16. {_TYPES}"),
    ] = None
    cache_type_v: Annotated[
        CacheType | None,
        _option("--cache-type-v", "-ctv", metavar="TYPE", help="Of its V cache; on a CPU bf16, else f16."),
    ] = None
    cache_type_k_draft: Annotated[
        CacheType | None, _option("--cache-type-k-draft", "-ctkd", metavar="TYPE", help="Of the draft's K cache.")
    ] = None
    cache_type_v_draft: Annotated[
        CacheType | None, _option("--cache-type-v-draft", "-ctvd", metavar="TYPE", help="Of its V cache.")
    ] = None
    flash_attn: Annotated[FlashAttention | None, _option("--flash-attn", "-fa", help="Flash attention; on.")] = None
    repack: Annotated[
        bool | None,
        _option("--repack/--no-repack", help="Re-order weights for this CPU, giving up bit-exactness; off."),
    ] = None
    load_mode: Annotated[
        LoadMode | None,
        _option(
            "--load-mode",
            "-lm",
            metavar="MODE",
            help="How weights come from the file: none, mmap, mlock, mmap+mlock, auto (mmap, if possible).",
        ),
    ] = None
    no_op_offload: Annotated[
        bool, _option("--no-op-offload", help="Never let the GPU multiply weights that lie in RAM.")
    ] = False
    exact: Annotated[
        bool, _option("--exact", help="Speculate only where a token's logits are the same bits as without.")
    ] = False

    def target_settings(self) -> LlamaSettings:
        """What is decided for the target. Raises UsageError for values and combinations that cannot be."""
        return LlamaSettings(
            **self._both("--cache-type-v", self.cache_type_v),
            gpu_layers=_layers("--gpu-layers", self.gpu_layers),
            n_cpu_moe=self._n_cpu_moe(),
            tensor_split=self._tensor_split(),
            type_k=self.cache_type_k,
            type_v=self.cache_type_v,
        )

    def draft_settings(self) -> LlamaSettings:
        """What is decided for the draft. Raises UsageError for values and combinations that cannot be."""
        return LlamaSettings(
            **self._both("--cache-type-v-draft", self.cache_type_v_draft),
            gpu_layers=_layers("--gpu-layers-draft", self.gpu_layers_draft),
            type_k=self.cache_type_k_draft,
            type_v=self.cache_type_v_draft,
        )

    def _both(self, option: str, type_v: CacheType | None) -> dict[str, Any]:
        """The settings that target and draft have in common. option: where `type_v` came from."""
        for name, threads in (("--threads", self.threads), ("--threads-batch", self.threads_batch)):
            if threads is not None and not 1 <= threads <= _MAX_THREADS:
                raise UsageError(f"{name} must be between 1 and {_MAX_THREADS}; got {threads}")
        if self.main_gpu is not None and self.main_gpu < 0:
            raise UsageError(f"--main-gpu must be 0 or more; got {self.main_gpu}")
        if self.flash_attn == "off" and type_v and type_v not in FLOAT_CACHE_TYPES:
            raise UsageError(
                f"{option} {type_v} needs flash attention; leave out --flash-attn off, "
                f"or choose one of {', '.join(FLOAT_CACHE_TYPES)}"
            )
        return {
            "threads": self.threads,
            "threads_batch": self.threads_batch,
            "repack": self.repack,
            "flash_attn": self.flash_attn,
            "load_mode": self.load_mode,
            "op_offload": False if self.no_op_offload else None,
            "split_mode": self.split_mode,
            "main_gpu": self.main_gpu,
        }

    def _n_cpu_moe(self) -> int | None:
        if self.cpu_moe and self.n_cpu_moe is not None:
            raise UsageError("--cpu-moe and --n-cpu-moe exclude each other; choose one")
        if self.n_cpu_moe is not None and not 0 <= self.n_cpu_moe <= _MAX_LAYERS:
            raise UsageError(f"--n-cpu-moe must be between 0 and {_MAX_LAYERS}; got {self.n_cpu_moe}")
        return ALL_LAYERS if self.cpu_moe else self.n_cpu_moe

    def _tensor_split(self) -> tuple[float, ...] | None:
        if self.tensor_split is None:
            return None
        if self.split_mode == "none":
            raise UsageError("--tensor-split and --split-mode none exclude each other; choose one")
        shares = _numbers(self.tensor_split.replace("/", ",").split(","))
        if not shares or min(shares) < 0 or not 0 < sum(shares) < float("inf"):
            raise UsageError(f"--tensor-split must be a list of shares such as 3,1; got {self.tensor_split}")
        return shares


def _numbers(texts: Sequence[str]) -> tuple[float, ...]:
    """The texts as numbers; none at all if one of them is not."""
    try:
        return tuple(float(text) for text in texts)
    except ValueError:
        return ()


def _layers(option: str, text: str | None) -> int | None:
    """A number of layers as llama.cpp's options take it."""
    if text is None or text == "auto":
        return None
    if text in ("all", str(ALL_LAYERS)):
        return ALL_LAYERS
    if not text.isdecimal() or int(text) > _MAX_LAYERS:
        raise UsageError(f"{option} must be between 0 and {_MAX_LAYERS}, all or auto; got {text}")
    return int(text)
