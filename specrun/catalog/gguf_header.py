"""What the header of a GGUF file says: metadata, tensors and ggml's types of weights; and what of it no model can say.

llama.cpp reports most contradictions itself. For some it ends the process (GGML_ASSERT), so specrun has to refuse those
files. Numbers are bounded because lists are made with so many items.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from specrun.errors import ModelFileError

# --- tensors ---------------------------------------------------------------------------------------------------------

EMBEDDING = "token_embd.weight"
OUTPUT = "output.weight"
INPUTS = (EMBEDDING, "per_layer_token_embd.weight", "position_embd.weight", "token_types.weight")
_LAYER = re.compile(r"blk\.(\d+)\.")
# LLM_FFN_EXPS_REGEX in llama.cpp's common.h: the routed experts, which --n-cpu-moe keeps in RAM. Shared experts, which
# every token uses, are named `_shexp`.
EXPERT_PATTERN = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of a file."""

    name: str
    shape: tuple[int, ...]  # in ggml's order, the contiguous dimension first
    type: str  # ggml's name of the element type, e.g. `Q4_K`
    n_bytes: int
    offset: int  # of its weights in the file, in bytes
    file: int = 0  # index of the file in `GgufFile.shards`

    @property
    def n_parameters(self) -> int:
        """Number of weights."""
        return prod(self.shape)


def layer_of(tensor: str) -> int | None:
    """Index of the layer that a tensor belongs to; None if it belongs to no layer."""
    match = _LAYER.match(tensor)
    return int(match[1]) if match else None


def is_expert(tensor: str) -> bool:
    """Whether a tensor holds routed experts, e.g. `blk.0.ffn_up_exps.weight`."""
    return bool(re.search(EXPERT_PATTERN, tensor))


@dataclass(frozen=True)
class GgmlType:
    """name: as ggml has it, e.g. `Q4_K`. block: weights that are packed together. block_bytes: what they take."""

    name: str
    block: int
    block_bytes: int

    def row_bytes(self, n: int) -> int:
        """Bytes of a row of `n` weights; the last block is whole."""
        return -(-n // self.block) * self.block_bytes


# enum ggml_type; the missing numbers belong to types that no file has any more. gguf has the same numbers, but takes 50
# ms to import, as long as everything else that a short run does with a model's header.
KNOWN_TYPES = {
    0: GgmlType("F32", 1, 4), 1: GgmlType("F16", 1, 2), 28: GgmlType("F64", 1, 8), 30: GgmlType("BF16", 1, 2),
    24: GgmlType("I8", 1, 1), 25: GgmlType("I16", 1, 2), 26: GgmlType("I32", 1, 4), 27: GgmlType("I64", 1, 8),
    2: GgmlType("Q4_0", 32, 18), 3: GgmlType("Q4_1", 32, 20), 6: GgmlType("Q5_0", 32, 22), 7: GgmlType("Q5_1", 32, 24),
    8: GgmlType("Q8_0", 32, 34), 9: GgmlType("Q8_1", 32, 40), 41: GgmlType("Q1_0", 128, 18),
    10: GgmlType("Q2_K", 256, 84), 11: GgmlType("Q3_K", 256, 110), 12: GgmlType("Q4_K", 256, 144),
    13: GgmlType("Q5_K", 256, 176), 14: GgmlType("Q6_K", 256, 210), 15: GgmlType("Q8_K", 256, 292),
    16: GgmlType("IQ2_XXS", 256, 66), 17: GgmlType("IQ2_XS", 256, 74), 22: GgmlType("IQ2_S", 256, 82),
    18: GgmlType("IQ3_XXS", 256, 98), 21: GgmlType("IQ3_S", 256, 110), 19: GgmlType("IQ1_S", 256, 50),
    29: GgmlType("IQ1_M", 256, 56), 20: GgmlType("IQ4_NL", 32, 18), 23: GgmlType("IQ4_XS", 256, 136),
    34: GgmlType("TQ1_0", 256, 54), 35: GgmlType("TQ2_0", 256, 66), 39: GgmlType("MXFP4", 32, 17),
    40: GgmlType("NVFP4", 64, 36),
}  # fmt: skip
_TYPES_BY_NAME = {known.name: known for known in KNOWN_TYPES.values()}


def type_numbered(number: int) -> GgmlType:
    """The type with this number in files. Raises ValueError if neither specrun nor gguf, which may be newer, has it."""
    if number in KNOWN_TYPES:
        return KNOWN_TYPES[number]
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    newer = GGMLQuantizationType(number)
    return GgmlType(newer.name, *GGML_QUANT_SIZES[newer])


def type_named(name: str) -> GgmlType:
    """The type with this name, in any case. Raises KeyError if it is not in KNOWN_TYPES."""
    return _TYPES_BY_NAME[name.upper()]


# --- metadata --------------------------------------------------------------------------------------------------------

# enum gguf_metadata_value_type; the scalars with their format characters of `struct`.
STRING, ARRAY = 8, 9
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

LENGTH = struct.Struct("<Q")  # of a string
_TYPE_AND_NUMBER = struct.Struct("<IQ")  # of an array: the type and the number of its items


class Metadata(Mapping[str, Any]):
    """A file's metadata by key. Values are decoded on access, because a vocabulary takes tenths of a second."""

    def __init__(self, data: bytes, places: Mapping[str, tuple[int, int, int]]) -> None:
        self._data = data
        self._places = places  # key -> (type, where the value starts in `data`, where it ends)

    def __getitem__(self, key: str) -> Any:
        kind, start, end = self._places[key]
        return _decoded(self._data, kind, start, end)

    def __contains__(self, key: object) -> bool:
        return key in self._places  # Mapping's own would decode the value

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def n_strings(self, key: str) -> int | None:
        """Number of strings in the array `key`, which is not decoded; None if it is missing or no array of strings."""
        kind, offset, _ = self._places.get(key, (-1, 0, 0))
        item, length = _TYPE_AND_NUMBER.unpack_from(self._data, offset) if kind == ARRAY else (-1, 0)
        return int(length) if item == STRING else None

    def strings(self, key: str) -> bytes:
        """The strings of the array `key` as the file has them, each behind its LENGTH; empty if there are none."""
        if not self.n_strings(key):
            return b""
        _, offset, end = self._places[key]
        return self._data[offset + _TYPE_AND_NUMBER.size : end]

    def has_string(self, text: str) -> bool:
        """Whether `text` is a string of the file, or an item of an array of strings; nothing is decoded."""
        data = text.encode()
        return LENGTH.pack(len(data)) + data in self._data


def _decoded(data: bytes, kind: int, start: int, end: int) -> Any:
    """The value of type `kind` that lies from `start` to `end`."""
    if kind == STRING:
        return data[start + LENGTH.size : end].decode("utf-8", errors="replace")
    if kind != ARRAY:
        return struct.unpack_from("<" + SCALARS[kind], data, start)[0]
    item, length = _TYPE_AND_NUMBER.unpack_from(data, start)
    start += _TYPE_AND_NUMBER.size
    if item in SCALARS:
        return list(struct.unpack_from(f"<{length}{SCALARS[item]}", data, start))
    return [text.decode("utf-8", errors="replace") for text in each_string(data[start:end])]


def each_string(strings: bytes) -> Iterator[bytes]:
    """The strings of which each lies behind its LENGTH."""
    start = 0
    while start < len(strings):
        (length,) = LENGTH.unpack_from(strings, start)
        end = start + LENGTH.size + length
        yield strings[start + LENGTH.size : end]
        start = end


# --- what no model can say -------------------------------------------------------------------------------------------

_MOST_LAYERS, _MOST_EXPERTS = 512, 1024  # LLAMA_MAX_LAYERS and LLAMA_MAX_EXPERTS
_LARGEST = 2**32 - 1
_BLANK = "\u2581"  # SentencePiece's sign for a blank
_LONGEST_NAME = 64  # characters of an architecture's or a tokenizer's name

_NAMES = ("general.architecture", "tokenizer.ggml.model", "tokenizer.ggml.pre")
_STRINGS = (*_NAMES, "general.name", "tokenizer.chat_template")
_TOKEN_IDS = ("tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id")
# Keys of the architecture whose values are numbers, or lists with a number for each layer.
_NUMBERS = (
    *("block_count", "context_length", "embedding_length", "vocab_size", "feed_forward_length"),
    *("expert_count", "expert_used_count", "expert_group_count", "expert_group_used_count"),
    *("expert_feed_forward_length", "nextn_predict_layers", "attention.head_count", "attention.head_count_kv"),
    *("attention.key_length", "attention.value_length", "attention.key_length_swa", "attention.value_length_swa"),
    *("attention.key_length_mla", "attention.value_length_mla", "attention.sliding_window"),
    *("attention.sliding_window_pattern", "ssm.conv_kernel", "ssm.inner_size", "ssm.state_size", "ssm.group_count"),
    *("shortconv.l_cache", "wkv.head_size", "token_shift_count", "kda.head_dim"),
)
_EPSILONS = ("attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon")
_PROJECTOR = "a projector (mmproj), which turns pictures or sound into input of a model; name that model's own file"
_CONTROL = "a control vector, which specrun does not apply; name the model that it was made for"
# By `general.type`, as llama.cpp's converter and tools write it.
_TYPES = {
    "adapter": "a LoRA adapter, which specrun does not apply; name its model, or merge both with llama-export-lora",
    "imatrix": "an importance matrix, which is for quantizing a model; name the model's own file",
    "mmproj": _PROJECTOR,
}
# By `general.architecture`: older projectors are of no other type, and control vectors of none at all.
_ARCHITECTURES = {"clip": _PROJECTOR, "controlvector": _CONTROL}


def kind_of(metadata: Mapping[str, Any]) -> str | None:
    """What a GGUF file holds that is no model, and what to do; None for a model."""
    for key, kinds in (("general.type", _TYPES), ("general.architecture", _ARCHITECTURES)):
        value = metadata.get(key)
        if isinstance(value, str) and value in kinds:
            return kinds[value]
    return None


def broken(name: str, why: str) -> ModelFileError:
    """The error for a file that contradicts itself. name: of the file."""
    return ModelFileError(f"{name} is broken: {why}; download it again")


def check_model(metadata: Metadata, name: str) -> None:
    """Raise ModelFileError for metadata of what is no model, or that no model can have. name: of the file."""
    if kind := kind_of(metadata):
        raise ModelFileError(f"{name} is {kind}")
    architecture = metadata.get("general.architecture", "unknown")
    checks: tuple[tuple[Iterable[str], Callable[[Any], bool], str], ...] = (
        (_STRINGS, lambda value: isinstance(value, str), "is no text"),
        (_NAMES, lambda value: value.isprintable() and 0 < len(value) <= _LONGEST_NAME, "is no name"),
        (_TOKEN_IDS, _is_count, "is no number of a token"),
        ((f"{architecture}.{key}" for key in _NUMBERS), _are_counts, f"is no number from 0 to {_LARGEST}"),
        ((f"{architecture}.{key}" for key in _EPSILONS), _is_small, "is no small number"),
    )
    for keys, is_right, why in checks:
        for key in keys:
            if key in metadata and not is_right(metadata[key]):
                raise broken(name, f"{key} {why}")
    if "tokenizer.ggml.tokens" in metadata and metadata.n_strings("tokenizer.ggml.tokens") is None:
        raise broken(name, "tokenizer.ggml.tokens is no list of texts")
    _check_sizes(lambda key: metadata.get(f"{architecture}.{key}"), name)


def check_characters(metadata: Metadata, name: str) -> None:
    """Raise ModelFileError for a SentencePiece vocabulary without plain characters, which ends llama.cpp's process."""
    if metadata.get("tokenizer.ggml.model") != "llama":
        return
    for character in (_BLANK, *map(chr, range(ord("!"), ord("~") + 1))):
        if not metadata.has_string(f"<0x{character.encode()[0]:02X}>") and not metadata.has_string(character):
            raise broken(name, f"its tokenizer lacks the character {character}")


def _check_sizes(value: Callable[[str], Any], name: str) -> None:
    layers, experts, used = value("block_count"), value("expert_count"), value("expert_used_count")
    if layers is not None and (isinstance(layers, list) or not 0 < layers <= _MOST_LAYERS):
        raise broken(name, f"it has an impossible number of layers ({_short(layers)})")
    if isinstance(value("nextn_predict_layers"), int) and value("nextn_predict_layers") > (layers or 0):
        raise broken(name, "it has more layers for several tokens than layers")
    most_used = max(used, default=0) if isinstance(used, list) else used or 0
    if isinstance(experts, list) or not most_used <= (experts or 0) <= _MOST_EXPERTS or (experts and not most_used):
        raise broken(name, f"it has an impossible number of experts ({_short(experts)}, of which {_short(used)} used)")
    groups, groups_used = value("expert_group_count") or 0, value("expert_group_used_count") or 0
    if isinstance(groups, list) or isinstance(groups_used, list) or (groups and groups >= (experts or 0)):
        raise broken(name, "it has an impossible number of groups of experts")
    if groups > 1 and (experts % groups or not 0 < groups_used < groups):
        raise broken(name, "it has groups of experts that do not divide them")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and 0 <= value <= _LARGEST


def _are_counts(value: object) -> bool:
    return all(map(_is_count, value if isinstance(value, list) else (value,)))


def _is_small(value: object) -> bool:
    return isinstance(value, (int, float)) and 0 <= value < 1


def _short(value: object) -> str:
    return str(value)[:_LONGEST_NAME]
