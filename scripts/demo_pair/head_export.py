"""Write a trained head as a GGUF file with Q8_0 matrices."""

from __future__ import annotations

from pathlib import Path

import gguf
from tokenizers import Tokenizer

from .export import add_general, add_tensor, write
from .head import Head
from .model import CONTEXT_LENGTH, NORM_EPSILON, ROPE_BASE

TOKENS = "tokenizer.ggml.tokens"


def check_vocabulary(target: Path, tokenizer: Tokenizer) -> None:
    """Raise ValueError if the tokenizer has other tokens than the target's file."""
    theirs = gguf.GGUFReader(target).fields[TOKENS].contents()
    ours = tokenizer.get_vocab()
    if theirs != sorted(ours, key=lambda token: ours[token]):
        raise ValueError(f"the tokens of {target} are others than those made from this Python's library")


def export(head: Head, target: Path, path: Path) -> None:
    """Write the head for this target. The output matrix is left to the target; the tokenizer is copied from it."""
    shape = head.shape
    writer = gguf.GGUFWriter(path, "eagle3")
    add_general(
        writer,
        "specrun demo head",
        f"An EAGLE-3 head for the target of a toy pair for trying speculative decoding: {head.parameter_count()} "
        "parameters, trained on the target's probabilities.",
    )
    writer.add_context_length(CONTEXT_LENGTH)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.heads)
    writer.add_key_length(shape.head_width)
    writer.add_value_length(shape.head_width)
    writer.add_rope_dimension_count(shape.head_width)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_layer_norm_rms_eps(NORM_EPSILON)
    layers = list(shape.target_layers)
    writer.add_key_value("eagle3.target_layers", layers, gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.UINT32)
    writer.add_uint32("eagle3.target_hidden_size", shape.width)
    for name, field in gguf.GGUFReader(target).fields.items():
        if name.startswith("tokenizer."):
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=field.types[-1])
    for key, parameter in head.named_parameters():
        add_tensor(writer, key, parameter.detach().float().numpy())
    write(writer)
