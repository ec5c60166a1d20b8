"""Write a trained DSpark head as a GGUF file with Q8_0 matrices."""

from __future__ import annotations

from pathlib import Path

import gguf

from .block_head import MASK, BlockHead
from .export import add_general, add_tensor, write
from .model import CONTEXT_LENGTH, NORM_EPSILON, ROPE_BASE


def export(head: BlockHead, target: Path, path: Path) -> None:
    """Write the head for this target, whose tokenizer is copied."""
    shape = head.shape
    writer = gguf.GGUFWriter(path, "dflash")
    add_general(
        writer,
        "specrun demo block head",
        f"A DSpark head for the target of a toy pair for trying speculative decoding: {head.parameter_count()} "
        "parameters, trained on the target's probabilities.",
    )
    writer.add_context_length(CONTEXT_LENGTH)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_width)
    writer.add_value_length(shape.head_width)
    writer.add_rope_dimension_count(shape.head_width)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_layer_norm_rms_eps(NORM_EPSILON)
    writer.add_uint32("dflash.block_size", shape.block)
    layers = list(shape.target_layers)
    writer.add_key_value("dflash.target_layers", layers, gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.UINT32)
    writer.add_mask_token_id(MASK)
    writer.add_causal_attention(True)
    for name, field in gguf.GGUFReader(target).fields.items():
        if name.startswith("tokenizer."):
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=field.types[-1])
    for key, parameter in head.named_parameters():
        add_tensor(writer, key, parameter.detach().float().numpy())
    write(writer)
