"""Broken GGUF files: a file taken apart, changed in one of many ways, and put together again.

taken_apart      the parts of a file
Parts.together   the bytes of a file with these parts
broken           the bytes of a file that is broken in a random way, and how it was broken
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests import foreign_files

STRING, ARRAY = 8, 9
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_ALIGNMENT = 32

# Numbers at which readers go wrong.
_NUMBERS = (
    *(0, 1, 2, 3, 7, 16, 31, 63, 64, 127, 128, 255, 256, 511, 512, 513, 1000, 1023, 1025, 2047, 2049, 32767, 65535),
    *(65536, 100_000, 2**24, 2**30, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1),
)
_FLOATS = (0.0, -1.0, 1e-30, 1e30, -1e30, float("inf"), float("-inf"), float("nan"))
_STRINGS = (
    *(b"", b"\0", b"\xff\xfe", b"\x1b[2J", b"a" * 300, "\u202e".encode(), b"llama", b"gpt2", b"none", b"\xf0\x9f"),
    b"\xed\xa0\xbd",  # half of a surrogate pair
)


@dataclass(frozen=True)
class Value:
    """A value of the metadata."""

    kind: int
    data: bytes  # the scalar, the string, or the items one behind the other
    item: int = 0  # type of an array's items
    count: int = 0  # of an array's items
    lie: tuple[int, int] | None = None  # what the file says instead of `item` and `count`

    def bytes(self) -> bytes:
        if self.kind == STRING:
            return struct.pack("<Q", len(self.data)) + self.data
        if self.kind == ARRAY:
            return struct.pack("<IQ", *(self.lie or (self.item, self.count))) + self.data
        return self.data


@dataclass(frozen=True)
class Tensor:
    """The description of a tensor. offset: of its weights after the header."""

    name: bytes
    shape: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True)
class Parts:
    """The parts of a file."""

    metadata: tuple[tuple[bytes, Value], ...]
    tensors: tuple[Tensor, ...]
    weights: bytes

    def together(self) -> bytes:
        """The bytes of a file with these parts."""
        pieces = [b"GGUF", struct.pack("<IQQ", 3, len(self.tensors), len(self.metadata))]
        for key, value in self.metadata:
            pieces += [struct.pack("<Q", len(key)), key, struct.pack("<I", value.kind & 0xFFFFFFFF), value.bytes()]
        for tensor in self.tensors:
            pieces += [struct.pack("<Q", len(tensor.name)), tensor.name, struct.pack("<I", len(tensor.shape))]
            pieces += [struct.pack("<Q", size & (2**64 - 1)) for size in tensor.shape]
            pieces.append(struct.pack("<IQ", tensor.kind & 0xFFFFFFFF, tensor.offset & (2**64 - 1)))
        header = b"".join(pieces)
        return header + bytes(-len(header) % _ALIGNMENT) + self.weights

    def with_value(self, key: str, value: Value) -> Parts:
        """The same parts with another value of a key."""
        wanted = key.encode()
        return replace(self, metadata=tuple((k, value if k == wanted else v) for k, v in self.metadata))


def taken_apart(path: Path) -> Parts:
    """The parts of a sound file."""
    data = path.read_bytes()
    n_tensors, n_keys = struct.unpack_from("<QQ", data, 8)
    offset = 24
    metadata, tensors = [], []
    for _ in range(n_keys):
        key, offset = _string(data, offset)
        (kind,) = struct.unpack_from("<I", data, offset)
        value, offset = _value(data, kind, offset + 4)
        metadata.append((key, value))
    for _ in range(n_tensors):
        name, offset = _string(data, offset)
        (n_dims,) = struct.unpack_from("<I", data, offset)
        shape = struct.unpack_from(f"<{n_dims}Q", data, offset + 4)
        kind, start = struct.unpack_from("<IQ", data, offset + 4 + 8 * n_dims)
        offset += 16 + 8 * n_dims
        tensors.append(Tensor(name, shape, kind, start))
    return Parts(tuple(metadata), tuple(tensors), data[-(-offset // _ALIGNMENT) * _ALIGNMENT :])


def _string(data: bytes, offset: int) -> tuple[bytes, int]:
    (length,) = struct.unpack_from("<Q", data, offset)
    return data[offset + 8 : offset + 8 + length], offset + 8 + length


def _value(data: bytes, kind: int, offset: int) -> tuple[Value, int]:
    if kind == STRING:
        text, offset = _string(data, offset)
        return Value(kind, text), offset
    if kind == ARRAY:
        item, count = struct.unpack_from("<IQ", data, offset)
        end = offset + 12
        for _ in range(count):
            end = _string(data, end)[1] if item == STRING else end + _SIZES[item]
        return Value(kind, data[offset + 12 : end], item, count), end
    return Value(kind, data[offset : offset + _SIZES[kind]]), offset + _SIZES[kind]


# --- ways to break a file ------------------------------------------------------------------------------------------


def broken(parts: Parts, rng: random.Random) -> tuple[bytes, str]:
    """The bytes of a file that is broken in one or a few random ways, and how it was broken."""
    ways = []
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        if not parts.tensors or not parts.metadata:  # the last one is gone
            break
        change = rng.choice(_CHANGES)
        parts = change(parts, rng)
        ways.append(change.__name__)
    if ways and rng.random() < 0.9:
        return parts.together(), " ".join(ways).replace("_", " ").strip()
    damage = rng.choice(_DAMAGES)
    return damage(parts, rng), " ".join((*ways, damage.__name__)).replace("_", " ").strip()


def _flipped_bytes(parts: Parts, rng: random.Random) -> bytes:
    data = bytearray(parts.together())
    n_header = len(data) - len(parts.weights)
    # Most of a header are tokens; what surrounds them matters more.
    places = [
        rng.randrange(n_header),
        rng.randrange(min(n_header, 200)),
        n_header - 1 - rng.randrange(min(n_header, 1000)),
    ]
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        data[(rng.choice(places) + rng.randrange(-2, 3)) % n_header] ^= rng.choice(
            (0xFF, 0x80, 1, rng.randrange(1, 256))
        )
    return bytes(data)


def _cut(parts: Parts, rng: random.Random) -> bytes:
    data = parts.together()
    return data[: rng.choice((rng.randrange(len(data)), rng.randrange(300), len(data) - rng.randrange(1, 100)))]


def _counts(parts: Parts, rng: random.Random) -> bytes:
    data = bytearray(parts.together())
    offset, form = rng.choice(((4, "<I"), (8, "<Q"), (16, "<Q")))
    struct.pack_into(form, data, offset, rng.choice(_NUMBERS) % (2**32 if form == "<I" else 2**64))
    return bytes(data)


def _number_changed(parts: Parts, rng: random.Random) -> Parts:
    """Another number for a key whose value is one."""
    keys = [i for i, (_, value) in enumerate(parts.metadata) if value.kind in _SIZES]
    return _with(parts, keys, lambda value: replace(value, data=_scalar(value.kind, rng)), rng)


def _type_changed(parts: Parts, rng: random.Random) -> Parts:
    """A value of another type for any key."""
    return _with(parts, range(len(parts.metadata)), lambda _: _any_value(rng), rng)


def _array_changed(parts: Parts, rng: random.Random) -> Parts:
    """An array that is shorter, longer, of another type, or said to be."""
    keys = [i for i, (_, value) in enumerate(parts.metadata) if value.kind == ARRAY]

    def changed(value: Value) -> Value:
        how = rng.randrange(4)
        if how == 0:
            return replace(value, lie=(value.item, rng.choice(_NUMBERS)))
        if how == 1:
            return replace(value, lie=(rng.choice((*_SIZES, STRING, ARRAY, 13, 99)), value.count))
        if how == 2 and value.item in _SIZES and value.count:
            size = _SIZES[value.item]
            items = bytearray(value.data)
            at = rng.randrange(value.count) * size
            items[at : at + size] = _scalar(value.item, rng)
            return replace(value, data=bytes(items))
        n = rng.choice((0, min(value.count, 2), value.count // 2))
        data = value.data
        if value.item in _SIZES:
            return replace(value, data=data[: n * _SIZES[value.item]], count=n)
        end = 0
        for _ in range(n):
            end = _string(data, end)[1]
        return replace(value, data=data[:end], count=n)

    return _with(parts, keys, changed, rng)


def _strings_changed(parts: Parts, rng: random.Random) -> Parts:
    """Some items of an array of strings, or a string, replaced."""
    keys = [i for i, (_, value) in enumerate(parts.metadata) if STRING in (value.kind, value.item)]

    def changed(value: Value) -> Value:
        if value.kind == STRING:
            return replace(value, data=rng.choice(_STRINGS))
        items, end = [], 0
        for _ in range(value.count):
            item, end = _string(value.data, end)
            items.append(item)
        for _ in range(rng.choice((1, 3, 30)) if items else 0):
            items[rng.randrange(len(items))] = rng.choice((*_STRINGS, rng.choice(items)))
        return replace(value, data=b"".join(struct.pack("<Q", len(item)) + item for item in items))

    return _with(parts, keys, changed, rng)


def _key_changed(parts: Parts, rng: random.Random) -> Parts:
    """A key that is gone, there twice, or called otherwise; or a key that llama.cpp knows, with any value."""
    metadata = list(parts.metadata)
    at = rng.randrange(len(metadata))
    how = rng.randrange(5)
    if how == 0:
        del metadata[at]
    elif how == 1:
        metadata.append((metadata[at][0], rng.choice((metadata[at][1], _any_value(rng)))))
    elif how == 2:
        metadata[at] = (rng.choice(_STRINGS), metadata[at][1])
    else:
        names = [value.data for key, value in parts.metadata if key == b"general.architecture"]
        architecture = names[0][:20] if names else b""
        metadata.append((rng.choice(_KNOWN_KEYS).replace(b"%s", architecture), _any_value(rng)))
    return replace(parts, metadata=tuple(metadata))


def _tensor_changed(parts: Parts, rng: random.Random) -> Parts:
    tensors = list(parts.tensors)
    at = rng.randrange(len(tensors))
    tensor, other = tensors[at], rng.choice(tensors)
    how = rng.randrange(8)
    if how == 0:
        shape = [*tensor.shape] or [1]
        shape[rng.randrange(len(shape))] = rng.choice(_NUMBERS)
        tensors[at] = replace(tensor, shape=tuple(shape))
    elif how == 1:
        tensors[at] = replace(tensor, shape=tuple(rng.choice(_NUMBERS) for _ in range(rng.randrange(7))))
    elif how == 2:
        tensors[at] = replace(tensor, kind=rng.choice((*range(45), 2**31, 2**32 - 1)))
    elif how == 3:
        tensors[at] = replace(
            tensor, offset=rng.choice((*_NUMBERS, other.offset, tensor.offset + 32, len(parts.weights)))
        )
    elif how == 4:
        tensors[at] = replace(tensor, name=rng.choice((*_STRINGS, other.name, tensor.name + b"x")))
    elif how == 5:
        del tensors[at]
    elif how == 6:
        tensors.append(tensor)
    else:
        tensors[at] = replace(tensor, shape=other.shape, kind=other.kind)
    return replace(parts, tensors=tuple(tensors))


def _tokenizer_changed(parts: Parts, rng: random.Random) -> Parts:
    """Another kind of tokenizer, with tables that are not made for it, or for anything."""
    kind = Value(STRING, rng.choice((b"llama", b"t5", b"bert", b"rwkv", b"plamo2", b"gemma4", b"hybriddna")))
    n = rng.choice((0, 3, 4, 8, 64, 4096))
    table = struct.pack("<I", rng.choice((0, 4, n // 2, n, 2**31, 2**32 - 1)))[:n] + rng.randbytes(max(n - 4, 0))
    scores = struct.pack("<2048f", *(rng.choice(_FLOATS) for _ in range(2048)))
    added = [(b"tokenizer.ggml.precompiled_charsmap", Value(ARRAY, table, 0, n))]
    added += [(b"tokenizer.ggml.scores", Value(ARRAY, scores, 6, 2048))] if rng.random() < 0.8 else []
    changed = parts.with_value("tokenizer.ggml.model", kind)
    return replace(changed, metadata=(*changed.metadata, *added))


def _weights_changed(parts: Parts, rng: random.Random) -> Parts:
    """Weights that are no numbers, or huge ones."""
    weights = bytearray(parts.weights)
    for _ in range(rng.choice((1, 20))):
        at = rng.randrange(len(weights))
        weights[at : at + 64] = bytes([rng.choice((0xFF, 0x7F, 0x80, 0))]) * len(weights[at : at + 64])
    return replace(parts, weights=bytes(weights))


def _of_another_kind(parts: Parts, rng: random.Random) -> Parts:
    """A file that says that it holds something else than a model, or that its model has no tokenizer."""
    key, *values = rng.choice(_KINDS)
    metadata = tuple((name, value) for name, value in parts.metadata if name != key)
    return replace(parts, metadata=((key, Value(STRING, rng.choice(values))), *metadata))


def _of_another_format(parts: Parts, rng: random.Random) -> bytes:
    """The beginning of a file that is no GGUF, with or without the rest of one."""
    return rng.choice(list(foreign_files.OTHERS.values())) + rng.choice((b"", parts.together()))


_DAMAGES = (_flipped_bytes, _flipped_bytes, _cut, _counts, _of_another_format)
_CHANGES: tuple[Callable[[Parts, random.Random], Parts], ...] = (
    _number_changed, _number_changed, _number_changed, _type_changed, _array_changed, _strings_changed, _key_changed,
    _tensor_changed, _tensor_changed, _tokenizer_changed, _weights_changed, _of_another_kind,
)  # fmt: skip
# Keys that say what a file holds, with values of other kinds.
_KINDS = (
    (b"general.type", b"adapter", b"imatrix", b"mmproj", b"vocab"),
    (b"general.architecture", b"clip", b"controlvector", b"flux"),
    (b"tokenizer.ggml.model", b"none", b"no_vocab"),
)

# Keys that llama.cpp reads where they are there.
_KNOWN_KEYS = (
    b"general.alignment", b"general.file_type", b"general.type", b"split.count", b"split.no", b"split.tensors.count",
    b"tokenizer.ggml.scores", b"tokenizer.ggml.add_space_prefix", b"tokenizer.ggml.precompiled_charsmap",
    b"tokenizer.ggml.unknown_token_id", b"tokenizer.ggml.suppress_tokens", b"tokenizer.ggml.token_type_count",
    b"tokenizer.ggml.eog_token_ids", b"tokenizer.chat_template",
    *(b"%s." + key for key in (
        b"vocab_size", b"context_length", b"expert_count", b"expert_used_count", b"expert_group_count",
        b"expert_group_used_count", b"expert_shared_count", b"leading_dense_block_count", b"nextn_predict_layers",
        b"attention.key_length", b"attention.value_length", b"attention.key_length_mla", b"attention.value_length_mla",
        b"attention.sliding_window", b"attention.sliding_window_pattern", b"attention.head_count_kv",
        b"attention.clamp_kqv", b"attention.max_alibi_bias", b"attention.scale", b"attention.causal",
        b"attention.layer_norm_epsilon", b"attention.layer_norm_rms_epsilon", b"attention.group_norm_groups",
        b"attention.q_lora_rank", b"attention.kv_lora_rank", b"attention.temperature_length", b"pooling_type",
        b"rope.dimension_count", b"rope.dimension_sections", b"rope.freq_base", b"rope.scaling.type",
        b"rope.scaling.factor", b"rope.scaling.original_context_length", b"rope.scale_linear", b"feed_forward_length",
        b"logit_scale", b"residual_scale", b"embedding_scale", b"attn_logit_softcapping", b"final_logit_softcapping",
        b"ssm.conv_kernel", b"ssm.inner_size", b"ssm.state_size", b"ssm.time_step_rank", b"ssm.group_count",
        b"dense_2_feat_in", b"decoder_start_token_id", b"use_parallel_residual", b"embedding_length_out",
    )),
)  # fmt: skip


def _with(parts: Parts, keys: Sequence[int], changed: Callable[[Value], Value], rng: random.Random) -> Parts:
    """The parts with the value of one of these keys changed; as they are if there is none."""
    if not keys:
        return parts
    at, metadata = rng.choice(keys), list(parts.metadata)
    metadata[at] = (metadata[at][0], changed(metadata[at][1]))
    return replace(parts, metadata=tuple(metadata))


def _scalar(kind: int, rng: random.Random) -> bytes:
    if kind in (6, 12):
        return struct.pack("<f" if kind == 6 else "<d", rng.choice(_FLOATS))
    return (rng.choice(_NUMBERS) % 2 ** (8 * _SIZES[kind])).to_bytes(_SIZES[kind], "little")


def _any_value(rng: random.Random) -> Value:
    kind = rng.choice((*_SIZES, 4, 4, 4, 5, 6, STRING, ARRAY, ARRAY, 13, 2**32 - 1))
    if kind == STRING:
        return Value(kind, rng.choice(_STRINGS))
    if kind == ARRAY:
        item = rng.choice((*_SIZES, STRING, ARRAY))
        count = rng.choice((0, 1, 2, 5, 600))
        if item == ARRAY:
            inner = struct.pack("<IQ", rng.choice((4, ARRAY)), 1) + struct.pack("<I", 1)
            return Value(kind, inner * count, lie=(item, count))
        items = [
            Value(STRING, rng.choice(_STRINGS)).bytes() if item == STRING else _scalar(item, rng) for _ in range(count)
        ]
        return Value(kind, b"".join(items), item, count)
    return Value(kind, _scalar(kind, rng) if kind in _SIZES else b"\0\0\0\0")
