"""Make a mixture of experts, for measuring what its passes cost where it does not fit.

    python scripts/make_mixture.py OUT.gguf [--layers 16] [--experts 48] [--used 4] [--embd 1024] [--ff 512]
        [--independent]
    python scripts/make_mixture.py OUT.gguf --from MODEL.gguf [--experts 24] [--used 12] [--excerpts 12]

The first has random weights in Q8_0 and the embedded pair's tokenizer, and writes nonsense. Its routers are random too:
how often they choose the same experts is not that of a trained model. Usually what attention adds to all tokens alike
outweighs the token, and tokens of a pass agree in many of their experts. With --independent the token outweighs it, and
they choose independently, about as those of trained models do.

The second splits the feed-forward layers of a trained dense llama into experts (docs/benchmarks/mixtures.md), so its
routers choose as what is written asks for, and it still writes text.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from moefication import mixture, texts
from moefication.dense import DenseLlama
from widening.checks import WideningError

from specrun.catalog import embedded
from specrun.catalog.gguf_reader import read_header
from specrun.errors import SpecrunError
from specrun.llama import LlamaModel

HEAD = 64  # width of an attention head
KV_HEADS = 4  # at most
RANDOM = {"layers": 16, "experts": 48, "used": 4, "embd": 1024, "ff": 512, "independent": False}
SPLIT = {"experts": 24, "used": 12, "excerpts": 12}
USAGE_EXIT_CODE = 2
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


def split(path: Path, source: Path, experts: int, used: int, excerpts: int) -> None:
    """Write the mixture of a dense model. Raises SpecrunError."""
    dense = DenseLlama(source)
    mixture.check(dense, experts, used)
    with LlamaModel(source) as model:
        tokens = np.concatenate(list(texts.excerpts(model, excerpts, is_held_out=False).values()))
    mixture.write(path, dense, used, mixture.fitted(dense, tokens, experts, used))


def chosen(options: argparse.Namespace) -> dict[str, Any]:
    """The options that hold for the kind of mixture, with its defaults. Raises WideningError for one of the other's."""
    defaults = SPLIT if options.source else RANDOM
    for name in (RANDOM | SPLIT).keys() - defaults.keys():
        if getattr(options, name) is not None:
            raise WideningError(f"--{name} is {'not' if options.source else 'only'} for a mixture made --from a model")
    given = {name: getattr(options, name) for name in defaults}
    return {name: defaults[name] if value is None else value for name, value in given.items()}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--from", dest="source", type=Path, metavar="MODEL", help="a dense llama, which is split")
    parser.add_argument("--experts", type=int, metavar="N", help="of each layer")
    parser.add_argument("--used", type=int, metavar="N", help="experts of a layer that a token uses")
    parser.add_argument("--excerpts", type=int, metavar="N", help="of each kind of text that experts are fitted to")
    parser.add_argument("--layers", type=int, metavar="N")
    parser.add_argument("--embd", type=int, metavar="N")
    parser.add_argument("--ff", type=int, metavar="N", help="width of an expert")
    parser.add_argument("--independent", action="store_true", default=None, help="tokens choose independently")
    options = parser.parse_args(arguments)
    try:
        values = chosen(options)
        if options.source:
            split(options.out, options.source, **values)
        else:
            write(options.out, **values)
    except (SpecrunError, OSError) as error:
        print(f"make_mixture.py: {error}", file=sys.stderr)
        return USAGE_EXIT_CODE
    print(f"{options.out}: {options.out.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
