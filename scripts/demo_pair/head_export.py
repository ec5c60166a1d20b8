"""Write a trained block head as a GGUF file with Q8_0 matrices."""

from __future__ import annotations

from pathlib import Path

import gguf
from make_head.model_writing import copy_tokenizer, write
from tokenizers import Tokenizer

from .block_head import MASK, BlockHead
from .export import add_general, add_shape, add_tensor

TOKENS = "tokenizer.ggml.tokens"


def check_vocabulary(target: Path, tokenizer: Tokenizer) -> None:
    """Raise ValueError if the tokenizer has other tokens than the target's file."""
    theirs = gguf.GGUFReader(target).fields[TOKENS].contents()
    ours = tokenizer.get_vocab()
    if theirs != sorted(ours, key=lambda token: ours[token]):
        raise ValueError(f"the tokens of {target} are others than those made from this Python's library")


def export_block_head(head: BlockHead, target: Path, path: Path) -> None:
    """Write a DSpark head for this target."""
    writer = gguf.GGUFWriter(path, "dflash")
    add_general(
        writer,
        "specrun demo block head",
        f"A DSpark head for the target of a toy pair for trying speculative decoding: {head.parameter_count()} "
        "parameters, trained on the target's probabilities.",
    )
    add_shape(writer, head.shape)
    layers = list(head.shape.target_layers)
    writer.add_key_value("dflash.target_layers", layers, gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.UINT32)
    writer.add_uint32("dflash.block_size", head.shape.block)
    writer.add_mask_token_id(MASK)
    writer.add_causal_attention(True)
    copy_tokenizer(writer, target)
    for key, parameter in head.named_parameters():
        add_tensor(writer, key, parameter.detach().float().numpy())
    write(writer)
