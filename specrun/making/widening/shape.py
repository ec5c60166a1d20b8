"""Sizes of a llama-architecture model: reading them from a source file, and whether other sizes can hold it."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf

from specrun.errors import UsageError

UNIT = 32  # weights of a quantized block; all sizes are multiples, so that blocks move as they are
MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
NORMS = ("attn_norm", "ffn_norm")

_EPSILON = "llama.attention.layer_norm_rms_epsilon"
_TOKENS = "tokenizer.ggml.tokens"


class WideningError(UsageError):
    """A source that cannot be widened, or sizes that it cannot have."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a llama. head_dim: width of one attention head."""

    embd: int
    layers: int
    ff: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int

    @property
    def group(self) -> int:
        """Query heads that share one key/value head."""
        return self.heads // self.kv_heads


@dataclass(frozen=True)
class Source:
    """A file that can be widened. Tensors stay on disk until they are read."""

    path: Path
    shape: Shape
    epsilon: float
    tensors: dict[str, gguf.ReaderTensor]
    fields: dict[str, gguf.ReaderField]

    @property
    def name(self) -> str:
        """`general.name`, or the file's name."""
        return str(self.value("general.name", self.path.stem))

    def value(self, key: str, default: Any = None) -> Any:
        """A metadata value, or `default` if the file lacks it."""
        return self.fields[key].contents() if key in self.fields else default


def read_source(path: Path) -> Source:
    """Open a GGUF file; raises `WideningError` unless it is a plain llama whose sizes are multiples of 32."""
    if not path.is_file():
        raise WideningError(f"{path}: no such file; give the path of a GGUF model")
    try:
        reader = gguf.GGUFReader(path)
        fields, tensors = dict(reader.fields), {tensor.name: tensor for tensor in reader.tensors}
        source = Source(path, _read_shape(path, fields), _read(path, fields, _EPSILON), tensors, fields)
    except (ValueError, IndexError, KeyError, ArithmeticError, OSError, struct.error) as error:
        raise WideningError(f"{path} is not a readable GGUF file ({error}); download it again") from error
    _check_plain(source)
    return source


def _read(path: Path, fields: dict[str, gguf.ReaderField], key: str, default: Any = None) -> Any:
    value = fields[key].contents() if key in fields else default
    if not isinstance(value, int | float):
        wrong = "lacks" if value is None else "has one value for each layer in"
        raise WideningError(f"{path} {wrong} {key}; choose another model")
    return value


def _read_shape(path: Path, fields: dict[str, gguf.ReaderField]) -> Shape:
    architecture = fields["general.architecture"].contents() if "general.architecture" in fields else "unknown"
    if architecture != "llama":
        raise WideningError(f"{path} is a {architecture} model; only the llama architecture can be widened")
    if _read(path, fields, "llama.expert_count", 0) or _read(path, fields, "split.count", 0) > 1:
        raise WideningError(f"{path} has experts or is one part of a split file; choose a plain model in one file")
    if _TOKENS not in fields:
        raise WideningError(f"{path} has no vocabulary; choose another model")
    embd = _read(path, fields, "llama.embedding_length")
    heads = _read(path, fields, "llama.attention.head_count")
    return Shape(
        embd=embd,
        layers=_read(path, fields, "llama.block_count"),
        ff=_read(path, fields, "llama.feed_forward_length"),
        heads=heads,
        kv_heads=_read(path, fields, "llama.attention.head_count_kv", heads),
        head_dim=_read(path, fields, "llama.attention.key_length", embd // heads),
        vocab=len(fields[_TOKENS].data),
    )


def _check_plain(source: Source) -> None:
    shape, path = source.shape, source.path
    for name, size in (("embedding", shape.embd), ("feed-forward", shape.ff), ("head", shape.head_dim)):
        if size % UNIT:
            raise WideningError(f"{path} has a {name} width of {size}, not a multiple of {UNIT}; choose another model")
    layer = [f"blk.{i}.{name}.weight" for i in range(shape.layers) for name in MATRICES + NORMS]
    needed = {"token_embd.weight", "output_norm.weight", *layer}
    if missing := sorted(needed - source.tensors.keys()):
        raise WideningError(f"{path} has no tensor {missing[0]}; choose another model")
    if unknown := sorted(source.tensors.keys() - needed - {"output.weight", "rope_freqs.weight"}):
        raise WideningError(f"{path} has a tensor {unknown[0]}, which the recipe does not cover; choose another model")


def check_sizes(source: Shape, target: Shape) -> None:
    """Raise `WideningError` unless a model of the sizes `target` can hold a model of the sizes `source`."""
    for name in ("embd", "layers", "ff", "heads", "kv_heads", "vocab"):
        option, had, wanted = "--" + name.replace("_", "-"), getattr(source, name), getattr(target, name)
        if wanted < had:
            raise WideningError(f"{option} {wanted} is smaller than the source's {had}; give {had} or more")
        if name in ("embd", "ff") and wanted % UNIT:
            raise WideningError(f"{option} {wanted} is not a multiple of {UNIT}; give {wanted + -wanted % UNIT}")
    if target.heads % target.kv_heads:
        more = target.heads + -target.heads % target.kv_heads
        raise WideningError(f"--heads {target.heads} is not a multiple of --kv-heads {target.kv_heads}; give {more}")
    needed = source.kv_heads * _copies(source, target)
    if needed > target.kv_heads:
        raise WideningError(
            f"--heads {target.heads} and --kv-heads {target.kv_heads} leave {target.group} query heads to a key/value "
            f"head where the source has {source.group}; give more --heads, or {needed} --kv-heads"
        )
    if target.vocab > source.vocab and target.embd == source.embd:
        raise WideningError(f"--vocab needs a spare width; give --embd {source.embd + UNIT} or more")


def _copies(source: Shape, target: Shape) -> int:
    """Into how many key/value heads of the target a head of the source is copied: several where groups are smaller."""
    return -(-source.group // target.group)


def query_slots(source: Shape, target: Shape) -> list[int]:
    """Where each query head of the source goes, so that it reads a copy of its own key/value head."""
    slots = []
    for head in range(source.heads):
        kv_head, member = divmod(head, source.group)
        copy, place = divmod(member, target.group)
        slots.append((kv_head * _copies(source, target) + copy) * target.group + place)
    return slots


def kv_slots(source: Shape, target: Shape) -> list[tuple[int, int]]:
    """(key/value head of the target, head of the source that it copies), for all heads that are not noise."""
    copies = _copies(source, target)
    return [(head * copies + copy, head) for head in range(source.kv_heads) for copy in range(copies)]
