"""Make a mixture of experts with random weights in Q8_0, for measuring what its passes cost where it does not fit.

    python scripts/make_mixture.py OUT.gguf [--layers 16] [--experts 48] [--used 4] [--embd 1024] [--ff 512]
        [--independent]

It has the embedded pair's tokenizer and writes nonsense. Its routers are random too: how often they choose the same
experts is not that of a trained model. Usually what attention adds to all tokens alike outweighs the token, and tokens
of a pass agree in many of their experts. With --independent the token outweighs it, and they choose independently,
about as those of trained models do.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gguf
import numpy as np

from specrun.catalog import embedded
from specrun.catalog.gguf_header import read_header

HEAD = 64  # width of an attention head
KV_HEADS = 4  # at most
Q8_0 = gguf.GGMLQuantizationType.Q8_0


def matrix(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    """Random blocks of Q8_0, uint8[..., n_in / 32 * 34], whose products have about `scale` times the scale of their
    input.
    """
    n_in = shape[-1]
    blocks = np.empty((int(np.prod(shape)) // 32, 34), np.uint8)
    blocks[:, :2] = np.frombuffer(np.float16(scale / np.sqrt(n_in) / 73).tobytes(), np.uint8)
    blocks[:, 2:] = rng.integers(0, 256, (len(blocks), 32), dtype=np.uint8)
    return blocks.reshape(*shape[:-1], n_in // 32 * 34)


def write(path: Path, layers: int, experts: int, used: int, embd: int, ff: int, independent: bool = False) -> None:
    """Write the model."""
    rng = np.random.default_rng(0)
    # Far above what all layers add together.
    scale = 4.0 * layers * np.sqrt(embd) if independent else 1.0
    writer = gguf.GGUFWriter(path, "qwen3moe")
    writer.add_name("random mixture")
    writer.add_context_length(2048)
    writer.add_embedding_length(embd)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(ff)
    writer.add_expert_feed_forward_length(ff)
    writer.add_expert_count(experts)
    writer.add_expert_used_count(used)
    writer.add_head_count(embd // HEAD)
    n_kv_heads = min(KV_HEADS, embd // HEAD)
    writer.add_head_count_kv(n_kv_heads)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    n_vocab = add_tokenizer(writer)
    writer.add_tensor("token_embd.weight", matrix(rng, n_vocab, embd, scale=scale), raw_dtype=Q8_0)
    writer.add_tensor("output.weight", matrix(rng, n_vocab, embd), raw_dtype=Q8_0)
    writer.add_tensor("output_norm.weight", np.ones(embd, np.float32))
    for layer in range(layers):
        block = f"blk.{layer}"
        for name, n in (("attn_norm", embd), ("ffn_norm", embd), ("attn_q_norm", HEAD), ("attn_k_norm", HEAD)):
            writer.add_tensor(f"{block}.{name}.weight", np.ones(n, np.float32))
        for name, n_out in (
            ("attn_q", embd), ("attn_k", n_kv_heads * HEAD), ("attn_v", n_kv_heads * HEAD), ("attn_output", embd),
        ):  # fmt: skip
            writer.add_tensor(f"{block}.{name}.weight", matrix(rng, n_out, embd), raw_dtype=Q8_0)
        router = (rng.standard_normal((experts, embd)) / np.sqrt(embd)).astype(np.float32)
        writer.add_tensor(f"{block}.ffn_gate_inp.weight", router)
        for name, n_out, n_in in (("gate", ff, embd), ("up", ff, embd), ("down", embd, ff)):
            weights = matrix(rng, experts, n_out, n_in)
            writer.add_tensor(f"{block}.ffn_{name}_exps.weight", weights, raw_dtype=Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tokenizer(writer: gguf.GGUFWriter) -> int:
    """The embedded pair's tokenizer. Returns the number of its tokens."""
    metadata = read_header(embedded.DRAFT).metadata
    tokens = list(metadata["tokenizer.ggml.tokens"])
    writer.add_tokenizer_model(str(metadata["tokenizer.ggml.model"]))
    if "tokenizer.ggml.pre" in metadata:
        writer.add_tokenizer_pre(str(metadata["tokenizer.ggml.pre"]))
    writer.add_token_list(tokens)
    writer.add_token_types([int(kind) for kind in metadata["tokenizer.ggml.token_type"]])
    if "tokenizer.ggml.merges" in metadata:
        writer.add_token_merges(list(metadata["tokenizer.ggml.merges"]))
    writer.add_eos_token_id(int(metadata["tokenizer.ggml.eos_token_id"]))
    return len(tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=16, metavar="N")
    parser.add_argument("--experts", type=int, default=48, metavar="N", help="of each layer")
    parser.add_argument("--used", type=int, default=4, metavar="N", help="experts of a layer that a token uses")
    parser.add_argument("--embd", type=int, default=1024, metavar="N")
    parser.add_argument("--ff", type=int, default=512, metavar="N", help="width of an expert")
    parser.add_argument("--independent", action="store_true", help="tokens choose their experts independently")
    options = parser.parse_args()
    shape = (options.layers, options.experts, options.used, options.embd, options.ff)
    write(options.out, *shape, options.independent)
    print(f"{options.out}: {options.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
