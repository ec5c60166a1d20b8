"""The shape of a GGUF model and the sizes of its parts, read from the headers of its files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from specrun.catalog.file_names import shards
from specrun.catalog.gguf_header import (
    EMBEDDING,
    INPUTS,
    OUTPUT,
    Metadata,
    TensorInfo,
    broken,
    check_model,
    is_expert,
    layer_of,
)
from specrun.catalog.gguf_reader import GgufHeader, read_header
from specrun.display_text import one_line
from specrun.errors import ModelFileError
from specrun.locations import of_files


@dataclass(frozen=True)
class GgufFile:
    """A model on disk with all its shards. Sizes are in bytes."""

    path: Path  # the file; of a split model, the first shard
    shards: tuple[Path, ...]  # all files, in order
    metadata: Metadata  # of the first shard
    tensors: tuple[TensorInfo, ...]  # of all shards

    @classmethod
    def read(cls, path: Path) -> GgufFile:
        """Read the headers, not the weights, of the model at `path`, in milliseconds. Raises ModelFileError."""
        return of_files(_read, [path.parent / name for name in shards(path.name)], path)

    # --- metadata --------------------------------------------------------------------------------------------------

    @property
    def architecture(self) -> str:
        """`general.architecture`, e.g. `llama`."""
        return str(self.metadata.get("general.architecture", "unknown"))

    @property
    def name(self) -> str:
        """`general.name`, or the file's name, in one line."""
        return one_line(str(self.metadata.get("general.name") or self.path.name))

    @property
    def chat_template(self) -> str | None:
        """The chat template; None if there is none, or only white space."""
        template = self.metadata.get("tokenizer.chat_template")
        return template if isinstance(template, str) and template.strip() else None

    @property
    def n_layers(self) -> int:
        """Number of layers, MTP layers included."""
        return self.number("block_count")

    @property
    def n_computed_layers(self) -> int:
        """Number of layers that every pass computes. MTP layers, which draft, come after them."""
        return self.n_layers - self.number("nextn_predict_layers")

    @property
    def n_ctx_train(self) -> int:
        """Context in tokens that the model was trained for; 0 if the file does not say."""
        return self.number("context_length")

    @property
    def n_embd(self) -> int:
        """Width of the hidden state."""
        return self.number("embedding_length")

    @cached_property
    def n_vocab(self) -> int:
        """Number of tokens."""
        n = self.metadata.n_strings("tokenizer.ggml.tokens") or self.number("vocab_size")
        return n or (self.by_name[EMBEDDING].shape[-1] if EMBEDDING in self.by_name else 0)

    @property
    def n_experts(self) -> int:
        """Number of experts per layer; 0 if the model is not a mixture of experts."""
        return self.number("expert_count")

    @property
    def n_experts_used(self) -> int:
        """Number of experts per layer that one token uses; 0 if the model is not a mixture of experts."""
        return self.number("expert_used_count")

    @property
    def used_share(self) -> float:
        """The share of a layer's experts that one token uses; 1 if the model is not a mixture of experts."""
        return self.n_experts_used / self.n_experts if self.n_experts else 1.0

    @property
    def n_heads(self) -> int:
        """Largest number of attention heads of a layer."""
        return self.number("attention.head_count")

    @property
    def heads(self) -> tuple[int, int, int] | None:
        """Attention heads of the first layer, those of K and V, and the numbers of a head of K and V; None if it has no
        matrices of their own for Q and K.
        """
        q, k = (self.by_name.get(f"blk.0.attn_{name}.weight") for name in "qk")
        if not q or not k or not self.n_heads or q.shape[-1] % self.n_heads:
            return None
        size = q.shape[-1] // self.n_heads
        return None if k.shape[-1] % size else (self.n_heads, k.shape[-1] // size, size)

    @property
    def n_ff(self) -> int:
        """Largest width of a feed-forward block: of a dense block, or of all experts together that a token uses."""
        dense = self.number("feed_forward_length")
        return max(dense, self.n_experts_used * self.number("expert_feed_forward_length", dense))

    def value(self, key: str) -> Any:
        """A value of the architecture's metadata, such as `context_length`; None if the file does not have it."""
        return self.metadata.get(f"{self.architecture}.{key}")

    def number(self, key: str, default: int = 0) -> int:
        """The value of `key` as a number; the largest number of a list; `default` if the file has no number."""
        value = self.value(key)
        if isinstance(value, list):
            return max((item for item in value if isinstance(item, int)), default=default)
        return value if isinstance(value, int) else default

    # --- sizes -----------------------------------------------------------------------------------------------------

    @cached_property
    def by_name(self) -> dict[str, TensorInfo]:
        """The tensors by their names."""
        return {tensor.name: tensor for tensor in self.tensors}

    @cached_property
    def n_parameters(self) -> int:
        """Number of weights."""
        return sum(tensor.n_parameters for tensor in self.tensors)

    @cached_property
    def n_bytes(self) -> int:
        """Bytes of the weights, without headers."""
        return sum(tensor.n_bytes for tensor in self.tensors)

    @cached_property
    def types(self) -> dict[str, dict[str, int]]:
        """The quantization mix: `bytes` and `parameters` by ggml type, the type with the most bytes first."""
        shares: dict[str, dict[str, int]] = {}
        for tensor in self.tensors:
            share = shares.setdefault(tensor.type, {"bytes": 0, "parameters": 0})
            share["bytes"] += tensor.n_bytes
            share["parameters"] += tensor.n_parameters
        return dict(sorted(shares.items(), key=lambda item: -item[1]["bytes"]))

    @property
    def quantization(self) -> str:
        """Common name of the quantization mix, e.g. `Q4_K_M`; the type with the most bytes if the file does not say."""
        from gguf.constants import LlamaFileType

        number = self.metadata.get("general.file_type")
        if isinstance(number, int) and number in LlamaFileType._value2member_map_:
            return LlamaFileType(number).name.removeprefix("MOSTLY_").removeprefix("ALL_")
        return next(iter(self.types), "unknown")

    @cached_property
    def layer_bytes(self) -> tuple[int, ...]:
        """Bytes of each layer's weights, experts included."""
        return self._layer_sums(lambda _: True)

    @cached_property
    def expert_bytes(self) -> tuple[int, ...]:
        """Bytes of each layer's routed experts, which `--n-cpu-moe` keeps in RAM."""
        return self._layer_sums(is_expert)

    def _layer_sums(self, counts: Callable[[str], bool]) -> tuple[int, ...]:
        sums = [0] * self.n_layers
        for tensor in self.tensors:
            layer = layer_of(tensor.name)
            if layer is not None and layer < len(sums) and counts(tensor.name):
                sums[layer] += tensor.n_bytes
        return tuple(sums)

    @cached_property
    def embedding_bytes(self) -> int:
        """Bytes of the embedding tables, which llama.cpp keeps in RAM."""
        return sum(self._bytes_of(name) for name in INPUTS)

    @property
    def is_tied(self) -> bool:
        """Whether the token embedding is also the output matrix."""
        return not self._bytes_of(OUTPUT)

    @property
    def output_bytes(self) -> int:
        """Bytes of the output matrix; with a tied embedding, bytes of the copy that llama.cpp puts on the GPU."""
        return self._bytes_of(OUTPUT) or self._bytes_of(EMBEDDING)

    @property
    def other_bytes(self) -> int:
        """Bytes of the weights outside layers, embedding and output matrix, such as norms and rope factors."""
        return self.n_bytes - sum(self.layer_bytes) - self.embedding_bytes - self._bytes_of(OUTPUT)

    @cached_property
    def identity(self) -> str:
        """`file_identity` of all its files, which are read for it once."""
        return file_identity(self.shards)

    def _bytes_of(self, name: str) -> int:
        return self.by_name[name].n_bytes if name in self.by_name else 0


def file_identity(paths: Sequence[Path], n_bytes: int = 2**20) -> str:
    """SHA-256 in hex over the size and the first and last bytes of each file of a model, wherever the files lie.

    n_bytes: at either end. Raises ModelFileError.
    """
    try:
        return of_files(_identity, paths, tuple(paths), n_bytes)
    except OSError as error:
        raise ModelFileError(f"{error.filename or paths[0]} cannot be read: {error.strerror}") from error


@lru_cache(maxsize=8)
def _identity(_states: tuple[object, ...], paths: Sequence[Path], n_bytes: int) -> str:
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            digest.update(size.to_bytes(8, "little"))
            for offset in (0, max(size - n_bytes, 0)):
                file.seek(offset)
                digest.update(file.read(n_bytes))
    return digest.hexdigest()


@lru_cache(maxsize=2)  # a target and its draft; skipping a vocabulary takes a tenth of a second
def _read(_states: tuple[object, ...], path: Path) -> GgufFile:
    header = read_header(path)
    check_model(header.metadata, str(path))
    paths = _shard_paths(path, header)
    others = [replace(tensor, file=i) for i, p in enumerate(paths[1:], 1) for tensor in read_header(p).tensors]
    return GgufFile(path, paths, header.metadata, (*header.tensors, *others))


def _shard_paths(path: Path, header: GgufHeader) -> tuple[Path, ...]:
    """All files of the model whose first is `path`. Raises ModelFileError if one is missing."""
    count = header.metadata.get("split.count", 0)
    if not isinstance(count, int) or count <= 1:
        return (path,)
    number = header.metadata.get("split.no", 0)
    names = shards(path.name)
    if len(names) != count or path.name not in names:
        name = f"*-00001-of-{count:05d}.gguf"
        raise ModelFileError(f"{path} is one of the {count} files of a split model; rename it to {name}")
    if not isinstance(number, int):
        raise broken(str(path), "split.no is no number")
    if number != 0:
        raise ModelFileError(f"{path} is shard {number + 1} of {count}; give the first, {names[0]}")
    paths = tuple(path.with_name(name) for name in names)
    missing = [shard.name for shard in paths if not shard.exists()]
    if missing:
        raise ModelFileError(f"{path} is a split model and {missing[0]} is missing; download all {count} files")
    return paths
