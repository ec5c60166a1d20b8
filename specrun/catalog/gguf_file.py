"""What a GGUF model file says about itself: its shape, and the bytes of each of its parts."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from specrun.catalog.gguf_header import GgufHeader, Metadata, TensorInfo, read_header
from specrun.errors import ModelFileError

_LAYER = re.compile(r"blk\.(\d+)\.")
# What llama.cpp's --n-cpu-moe matches (LLM_FFN_EXPS_REGEX in its common.h); shared experts are `_shexp`.
_EXPERT = re.compile(r"\.ffn_(up|down|gate|gate_up)_(ch|)exps")
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)

EMBEDDING = "token_embd.weight"
OUTPUT = "output.weight"
_INPUTS = (EMBEDDING, "per_layer_token_embd.weight", "position_embd.weight", "token_types.weight")


@dataclass(frozen=True)
class TypeShare:
    """How much of a model is held in one ggml type."""

    n_bytes: int
    n_parameters: int


@dataclass(frozen=True)
class GgufFile:
    """A model on disk, all its shards. Sizes are bytes, `n_` counts tokens, layers or parameters.

    path: the file, the first shard of a split one. shards: all files, in order. metadata: decoded when asked for.
    """

    path: Path
    shards: tuple[Path, ...]
    metadata: Metadata
    tensors: tuple[TensorInfo, ...]

    @classmethod
    def read(cls, path: Path) -> GgufFile:
        """Read the headers of the model at `path`; takes milliseconds, and no weights.

        Raises ModelFileError if a file is missing, cut off or not GGUF, or `path` is a later shard of a split model.
        """
        header = read_header(path)
        shards = _shards(path, header)
        others = [read_header(shard) for shard in shards[1:]]
        tensors = [tensor for part in (header, *others) for tensor in part.tensors]
        return cls(path, shards, header.metadata, tuple(tensors))

    # --- metadata --------------------------------------------------------------------------------------------------

    @property
    def architecture(self) -> str:
        """`general.architecture`, e.g. `llama`."""
        return str(self.metadata.get("general.architecture", "unknown"))

    @property
    def name(self) -> str:
        """`general.name`, or the file's name."""
        return str(self.metadata.get("general.name") or self.path.name)

    @property
    def n_layers(self) -> int:
        """Number of layers."""
        return self._number("block_count")

    @property
    def n_ctx_train(self) -> int:
        """Tokens of context that the model was trained for; 0 if the file does not say."""
        return self._number("context_length")

    @property
    def n_embd(self) -> int:
        """Numbers in one token's embedding."""
        return self._number("embedding_length")

    @cached_property
    def n_vocab(self) -> int:
        """Number of tokens."""
        tokens = self.metadata.length("tokenizer.ggml.tokens")
        return (
            tokens or self._number("vocab_size") or next((t.shape[-1] for t in self.tensors if t.name == EMBEDDING), 0)
        )

    @property
    def n_experts(self) -> int:
        """Experts of a layer; 0 if the model is not a mixture of experts."""
        return self._number("expert_count")

    @property
    def n_experts_used(self) -> int:
        """Experts of a layer that one token uses; 0 if the model is not a mixture of experts."""
        return self._number("expert_used_count")

    @property
    def n_heads(self) -> int:
        """Attention heads, of the layer that has most."""
        return self._number("attention.head_count")

    @property
    def n_ff(self) -> int:
        """Numbers inside a dense feed-forward block, of the layer that has most."""
        return self._number("feed_forward_length")

    @property
    def n_ff_expert(self) -> int:
        """Numbers inside one expert's block; 0 if the model is not a mixture of experts, or does not say."""
        return self._number("expert_feed_forward_length", self.n_ff if self.n_experts else 0)

    @property
    def sliding_window(self) -> int | None:
        """Tokens that the layers with sliding-window attention see, or None if there are no such layers.

        specrun caches all tokens in these layers too (`swa_full`), so the KV cache is no smaller for it.
        """
        return self._number("attention.sliding_window") or None

    @property
    def is_mla(self) -> bool:
        """Whether attention is latent (MLA): one cache holds K and V."""
        return bool(self._number("attention.key_length_mla") and self._number("attention.value_length_mla"))

    def _value(self, key: str) -> Any:
        return self.metadata.get(f"{self.architecture}.{key}")

    def _number(self, key: str, default: int = 0) -> int:
        value = self._value(key)
        if isinstance(value, list):
            return max((item for item in value if isinstance(item, int)), default=default)
        return value if isinstance(value, int) else default

    def _by_layer(self, key: str, default: int) -> list[int]:
        """A value that may be given once or for each layer."""
        value = self._value(key)
        if isinstance(value, list):
            return [int(item) for item in value[: self.n_layers]] + [default] * (self.n_layers - len(value))
        return [value if isinstance(value, int) else default] * self.n_layers

    # --- sizes -----------------------------------------------------------------------------------------------------

    @cached_property
    def n_parameters(self) -> int:
        """Number of weights."""
        return sum(tensor.n_parameters for tensor in self.tensors)

    @cached_property
    def n_bytes(self) -> int:
        """Size of the weights, without headers."""
        return sum(tensor.n_bytes for tensor in self.tensors)

    @cached_property
    def types(self) -> dict[str, TypeShare]:
        """The quantization mix: bytes and parameters of each ggml type, most bytes first."""
        shares: dict[str, TypeShare] = {}
        for tensor in self.tensors:
            before = shares.get(tensor.type, TypeShare(0, 0))
            shares[tensor.type] = TypeShare(before.n_bytes + tensor.n_bytes, before.n_parameters + tensor.n_parameters)
        return dict(sorted(shares.items(), key=lambda item: -item[1].n_bytes))

    @property
    def quantization(self) -> str:
        """Name of the mix as uploaders use it, e.g. `Q4_K_M`; the largest type if the file names none."""
        from gguf.constants import LlamaFileType

        number = self.metadata.get("general.file_type")
        if isinstance(number, int) and number in LlamaFileType._value2member_map_:
            return LlamaFileType(number).name.removeprefix("MOSTLY_").removeprefix("ALL_")
        return next(iter(self.types), "unknown")

    @cached_property
    def layer_bytes(self) -> tuple[int, ...]:
        """Bytes of the weights of each layer, experts included."""
        return self._layer_sums(lambda _: True)

    @cached_property
    def expert_bytes(self) -> tuple[int, ...]:
        """Bytes of the routed experts' weights in each layer, which `--n-cpu-moe` keeps in RAM."""
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
        """Bytes of the tables that tokens are looked up in, which llama.cpp keeps in RAM."""
        return sum(self._bytes_of(name) for name in _INPUTS)

    @property
    def is_tied(self) -> bool:
        """Whether the token embedding is the output matrix too."""
        return not self._bytes_of(OUTPUT)

    @property
    def output_bytes(self) -> int:
        """Bytes of the output matrix; with a tied embedding that once more, as llama.cpp copies it to the GPU."""
        return self._bytes_of(OUTPUT) or self._bytes_of(EMBEDDING)

    @property
    def other_bytes(self) -> int:
        """Bytes that belong to no layer, nor to embedding and output: norms, rope factors."""
        return self.n_bytes - sum(self.layer_bytes) - self.embedding_bytes - self._bytes_of(OUTPUT)

    def _bytes_of(self, name: str) -> int:
        return sum(tensor.n_bytes for tensor in self.tensors if tensor.name == name)

    def kv_bytes_per_token(self, type_k: str = "f16", type_v: str = "f16") -> tuple[int, ...]:
        """Bytes that one token takes in the KV cache of each layer, with K and V in these ggml types.

        Recurrent layers have no KV cache, where the file gives them 0 heads; models that share a cache between layers
        are counted as if they did not.
        """
        n_heads = self._by_layer("attention.head_count", 0)
        n_kv_heads = self._by_layer("attention.head_count_kv", -1)
        default = self.n_embd // n_heads[0] if n_heads and n_heads[0] else 0
        sizes = []
        for layer, (heads, kv_heads) in enumerate(zip(n_heads, n_kv_heads, strict=True)):
            suffix = "_swa" if self._slides(layer) else ""
            n_k, n_v = (
                self._number(f"attention.{part}_length{suffix}", self._number(f"attention.{part}_length", default))
                for part in ("key", "value")
            )
            count = heads if kv_heads < 0 else kv_heads
            size = row_bytes(type_k, n_k * count)
            sizes.append(size if self.is_mla else size + row_bytes(type_v, n_v * count))
        return tuple(sizes)

    def _slides(self, layer: int) -> bool:
        """Whether the file says that this layer has sliding-window attention."""
        pattern = self._value("attention.sliding_window_pattern")
        return isinstance(pattern, list) and layer < len(pattern) and bool(pattern[layer])


def row_bytes(ggml_type: str, n: int) -> int:
    """Bytes of `n` numbers in a row of a ggml type such as `f16` or `q8_0`."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[ggml_type.upper()]]
    return -(-n // block) * block_bytes


def layer_of(tensor: str) -> int | None:
    """The layer that a tensor belongs to, by its name, or None."""
    match = _LAYER.match(tensor)
    return int(match[1]) if match else None


def is_expert(tensor: str) -> bool:
    """Whether a tensor holds routed experts, by its name, e.g. `blk.0.ffn_up_exps.weight`."""
    return bool(_EXPERT.search(tensor))


def _shards(path: Path, header: GgufHeader) -> tuple[Path, ...]:
    """All files of the model that begins at `path`."""
    count = header.metadata.get("split.count", 0)
    if not isinstance(count, int) or count <= 1:
        return (path,)
    number = header.metadata.get("split.no", 0)
    match = _SHARD.fullmatch(path.name)
    if not match or int(match[3]) != count:
        raise ModelFileError(
            f"{path} is part of a split model of {count} files; give it back its name, *-00001-of-{count:05d}.gguf"
        )
    shards = shard_paths(path, match[1], count)
    if number != 0:
        raise ModelFileError(f"{path} is shard {number + 1} of {count}; give the first, {shards[0].name}")
    missing = [shard.name for shard in shards if not shard.exists()]
    if missing:
        raise ModelFileError(f"{path} is a split model and {missing[0]} is missing; download all {count} files")
    return shards


def shard_paths(path: Path, prefix: str, count: int) -> tuple[Path, ...]:
    """The files of a split model, named as llama.cpp's gguf-split does."""
    return tuple(path.with_name(f"{prefix}-{i:05d}-of-{count:05d}.gguf") for i in range(1, count + 1))
