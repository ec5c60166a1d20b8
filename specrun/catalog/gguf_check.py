"""What a GGUF file says about its model, checked before anything is computed from it.

llama.cpp reports most contradictions itself. For some it ends the process (GGML_ASSERT), so specrun's reader has to
refuse those files. Numbers are bounded because lists are made with so many items.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from specrun.catalog.gguf_header import Metadata, broken
from specrun.catalog.not_models import kind_of
from specrun.errors import ModelFileError

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
