"""Write a trained head as a GGUF file with Q8_0 matrices."""

from __future__ import annotations

from pathlib import Path

import gguf
from tokenizers import Tokenizer

from .block_head import MASK, BlockHead
from .export import add_general, add_shape, add_tensor, write
from .head import Head

TOKENS = "tokenizer.ggml.tokens"


def check_vocabulary(target: Path, tokenizer: Tokenizer) -> None:
    """Raise ValueError if the tokenizer has other tokens than the target's file."""
    theirs = gguf.GGUFReader(target).fields[TOKENS].contents()
    ours = tokenizer.get_vocab()
    if theirs != sorted(ours, key=lambda token: ours[token]):
        raise ValueError(f"the tokens of {target} are others than those made from this Python's library")


def export(head: Head, target: Path, path: Path) -> None:
    """Write an EAGLE-3 head for this target. The output matrix is left to the target."""
    writer = gguf.GGUFWriter(path, "eagle3")
    _add_facts(writer, head, "specrun demo head", "An EAGLE-3 head")
    writer.add_uint32("eagle3.target_hidden_size", head.shape.width)
    _finish(writer, head, target)


def export_block_head(head: BlockHead, target: Path, path: Path) -> None:
    """Write a DSpark head for this target."""
    writer = gguf.GGUFWriter(path, "dflash")
    _add_facts(writer, head, "specrun demo block head", "A DSpark head")
    writer.add_uint32("dflash.block_size", head.shape.block)
    writer.add_mask_token_id(MASK)
    writer.add_causal_attention(True)
    _finish(writer, head, target)


def _add_facts(writer: gguf.GGUFWriter, head: Head | BlockHead, name: str, what: str) -> None:
    """Say what the file is, the sizes of the head, and the layers of the target that it reads."""
    add_general(
        writer,
        name,
        f"{what} for the target of a toy pair for trying speculative decoding: {head.parameter_count()} "
        "parameters, trained on the target's probabilities.",
    )
    add_shape(writer, head.shape)
    layers = list(head.shape.target_layers)
    writer.add_key_value(f"{writer.arch}.target_layers", layers, gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.UINT32)


def _finish(writer: gguf.GGUFWriter, head: Head | BlockHead, target: Path) -> None:
    """Copy the target's tokenizer, add the weights, and write the file."""
    for name, field in gguf.GGUFReader(target).fields.items():
        if name.startswith("tokenizer."):
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=field.types[-1])
    for key, parameter in head.named_parameters():
        add_tensor(writer, key, parameter.detach().float().numpy())
    write(writer)
