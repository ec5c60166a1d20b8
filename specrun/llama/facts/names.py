"""Facts about names in llama.cpp's libraries: variables of the environment, functions and architectures."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from specrun.catalog import entries
from specrun.errors import LlamaError
from specrun.llama import library, offload_threshold, tiled_kernels
from specrun.llama.batch import committed_tokens
from specrun.llama.context import ContextConfig, LlamaContext
from specrun.llama.facts import tiny_model
from specrun.llama.heads import bindings
from specrun.llama_settings import LlamaSettings

_NO_GPU = ("base", "cpu", "rpc", "blas")  # libraries of ggml that read nothing about GPUs


def _unknown(names: Iterable[str], files: Iterable[Path], what: str = "") -> str | None:
    """A clause that says which names none of these libraries has as a string; None if they have all. what: they are."""
    lacking = list(names)
    for path in files:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            # Linkers store a string that is the end of a longer string only there, so anything may come before it.
            lacking = [name for name in lacking if content.find(name.encode() + b"\0") < 0]
    return f"this llama.cpp does not know {what}{' and '.join(lacking)}" if lacking else None


def check_tiled(_: LlamaSettings) -> str | None:
    """Whether the build knows both variables. On processors without tiled kernels nothing sets them."""
    return _unknown(tiled_kernels.VARIABLES, library.files()) if tiled_kernels.has_processor() else None


def check_threshold(_: LlamaSettings) -> str | None:
    """Whether the build knows the variable. Only GPU backends read it, so a build without them needs no such name."""
    files = library.files()
    gpus = [path for path in files if "ggml-" in path.name and not any(f"ggml-{part}" in path.name for part in _NO_GPU)]
    return _unknown([offload_threshold.VARIABLE], files) if gpus else None


def check_architectures(_: LlamaSettings) -> str | None:
    """Whether this build knows every architecture of the tables."""
    named = sorted(frozenset().union(*entries.TABLES.values()))
    return _unknown(named, library.files(), "the architecture ")


def check_hidden_states(settings: LlamaSettings) -> str | None:
    """Whether the functions are there, and give the rows that enter the first layer: rows of the embedding."""
    try:
        bindings.functions()
    except LlamaError as error:
        return str(error).partition(";")[0]
    tokens = [3, 1, 3, 2]
    config = ContextConfig(256, n_seq_max=1, n_batch=8, n_outputs=4, settings=LlamaSettings(1, tiled=settings.tiled))
    with tiny_model.loaded() as model, LlamaContext(model, config) as context:
        bindings.keep_layer_inputs(context.handle, (0,))
        context.decode(committed_tokens(tokens, 0, 1, 1))
        rows = bindings.layer_inputs(context.handle, 0, len(tokens), model.n_embd).copy()
    if not np.array_equal(rows, tiny_model.embedding(tokens)):
        return "this llama.cpp gives other rows than those that enter a layer"
    return None
