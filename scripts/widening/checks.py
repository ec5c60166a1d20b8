"""What can be widened: sources and sizes that `specrun.making.widening` takes without a check."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from specrun.errors import UsageError
from specrun.making.widening import EPSILON, MATRICES, NORMS, TOKENS, UNIT, Shape, Source, read_source

from .any_model import freq_base, group, key_copies
from .experts import EXPERTS, ROUTER, has_experts


class WideningError(UsageError):
    """A source that cannot be widened, or sizes that it cannot have."""


def checked(path: Path, sizes: dict[str, int]) -> tuple[Source, Shape]:
    """The source, and the sizes of the wider model. sizes: those that change, by the names of the fields of `Shape`.

    Raises `WideningError` unless the file is a plain llama whose sizes are multiples of 32, and the sizes hold it.
    """
    if not path.is_file():
        raise WideningError(f"{path}: no such file; give the path of a GGUF model")
    try:
        _check_metadata(path, gguf.GGUFReader(path).fields)
        source = read_source(path)
    except (ValueError, IndexError, KeyError, ArithmeticError, OSError, struct.error) as error:
        raise WideningError(f"{path} is not a readable GGUF file ({error}); download it again") from error
    _check_plain(source)
    target = replace(source.shape, **sizes)
    _check_sizes(source.shape, target)
    if has_experts(source) and target.layers > source.shape.layers:
        raise WideningError(f"{path} is a mixture, whose layers are not added to; leave out --layers")
    if freq_base(source, target) > float(np.finfo(np.float32).max):
        raise WideningError(f"--head-dim {target.head_dim} is too wide for the rotation of {path}; give less")
    return source, target


def _check_metadata(path: Path, fields: dict[str, gguf.ReaderField]) -> None:
    architecture = fields["general.architecture"].contents() if "general.architecture" in fields else "unknown"
    if architecture != "llama":
        raise WideningError(f"{path} is a {architecture} model; choose one of the llama architecture")
    if _number(path, fields, "split.count", 0) > 1:
        raise WideningError(f"{path} is one part of a split file; choose a model in one file")
    if TOKENS not in fields:
        raise WideningError(f"{path} has no vocabulary; choose another model")
    for key in ("embedding_length", "attention.head_count", "block_count", "feed_forward_length"):
        _number(path, fields, f"llama.{key}")
    for key in ("attention.head_count_kv", "attention.key_length"):
        _number(path, fields, f"llama.{key}", 0)
    _number(path, fields, EPSILON)


def _number(path: Path, fields: dict[str, gguf.ReaderField], key: str, default: Any = None) -> Any:
    value = fields[key].contents() if key in fields else default
    if not isinstance(value, int | float):
        wrong = "lacks" if value is None else "has one value for each layer in"
        raise WideningError(f"{path} {wrong} {key}; choose another model")
    return value


def _check_plain(source: Source) -> None:
    shape, path = source.shape, source.path
    for name, size in (("embedding", shape.embd), ("feed-forward", shape.ff), ("head", shape.head_dim)):
        if size % UNIT:
            raise WideningError(f"{path} has a {name} width of {size}, not a multiple of {UNIT}; choose another model")
    names = NORMS + MATRICES
    if has_experts(source):
        names = (*NORMS, *set(MATRICES).difference(EXPERTS), ROUTER, *(f"{name}_exps" for name in EXPERTS))
    layer = [f"blk.{i}.{name}.weight" for i in range(shape.layers) for name in names]
    needed = {"token_embd.weight", "output_norm.weight", *layer}
    if missing := sorted(needed - source.tensors.keys()):
        raise WideningError(f"{path} has no tensor {missing[0]}; choose another model")
    if unknown := sorted(source.tensors.keys() - needed - {"output.weight", "rope_freqs.weight"}):
        raise WideningError(f"{path} has a tensor {unknown[0]}, which the recipe does not cover; choose another model")


def _check_sizes(source: Shape, target: Shape) -> None:
    """Raise `WideningError` unless a model of the sizes `target` can hold a model of the sizes `source`."""
    for name in ("embd", "layers", "ff", "heads", "kv_heads", "head_dim", "vocab"):
        option, had, wanted = "--" + name.replace("_", "-"), getattr(source, name), getattr(target, name)
        if wanted < had:
            raise WideningError(f"{option} {wanted} is smaller than the source's {had}; give {had} or more")
        if name in ("embd", "ff", "head_dim") and wanted % UNIT:
            raise WideningError(f"{option} {wanted} is not a multiple of {UNIT}; give {wanted + -wanted % UNIT}")
    if target.heads % target.kv_heads:
        more = target.heads + -target.heads % target.kv_heads
        raise WideningError(f"--heads {target.heads} is not a multiple of --kv-heads {target.kv_heads}; give {more}")
    needed = source.kv_heads * key_copies(source, target)
    if needed > target.kv_heads:
        raise WideningError(
            f"--heads {target.heads} and --kv-heads {target.kv_heads} leave {group(target)} query heads to a key/value "
            f"head where the source has {group(source)}; give more --heads, or {needed} --kv-heads"
        )
    if target.vocab > source.vocab and target.embd == source.embd:
        raise WideningError(f"--vocab needs a spare width; give --embd {source.embd + UNIT} or more")
