"""What every small model or head that is written here from weights in memory says of itself, and how it is written."""

from __future__ import annotations

from pathlib import Path

import gguf


def add_sizes(
    writer: gguf.GGUFWriter,
    *,
    n_ctx: int,
    width: int,
    layers: int,
    feed_forward: int,
    heads: int,
    kv_heads: int,
    head_width: int,
    rope_base: float,
    epsilon: float,
) -> None:
    """Write the sizes that llama.cpp builds a network of equal layers from. All of a head's numbers are rotated."""
    writer.add_context_length(n_ctx)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(feed_forward)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_width)
    writer.add_value_length(head_width)
    writer.add_rope_dimension_count(head_width)
    writer.add_rope_freq_base(rope_base)
    writer.add_layer_norm_rms_eps(epsilon)


def copy_tokenizer(writer: gguf.GGUFWriter, source: Path) -> None:
    """Give the model the tokenizer of another file."""
    for name, field in gguf.GGUFReader(source).fields.items():
        if name.startswith("tokenizer."):
            item = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=item)


def write(writer: gguf.GGUFWriter) -> None:
    """Write the file, whose metadata and tensors are complete, and close it in any case. Raises OSError."""
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()
