"""Write a trained model as a GGUF file with Q8_0 matrices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Protocol, TypeVar

import gguf
import numpy as np
import torch
from make_head.model_writing import add_sizes, write
from tokenizers import Tokenizer

from .model import CONTEXT_LENGTH, NORM_EPSILON, ROPE_BASE, Llama
from .tokenizer import END_OF_TEXT

Module = TypeVar("Module", bound=torch.nn.Module)

# A conversation reads as a Python file: the system message as a comment, the rest as it is. Every message adds text
# at the end only, so a longer conversation always starts with the text of a shorter one.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}"
    "{% for line in message['content'].split('\\n') %}{{ '# ' + line + '\\n' }}{% endfor %}"
    "{% else %}{{ message['content'] + '\\n' }}{% endif %}"
    "{% endfor %}"
)


def export(model: Llama, tokenizer: Tokenizer, path: Path, *, name: str, description: str) -> None:
    """Write model and tokenizer to path."""
    writer = gguf.GGUFWriter(path, "llama")
    add_general(writer, name, description)
    writer.add_vocab_size(model.shape.vocabulary)
    add_shape(writer, model.shape)
    add_tokenizer(writer, tokenizer)
    for key, parameter in model.named_parameters():
        add_tensor(writer, key, parameter.detach().float().numpy())
    write(writer)


def add_general(writer: gguf.GGUFWriter, name: str, description: str) -> None:
    """Say what the file is and under which terms it comes."""
    writer.add_type("model")
    writer.add_name(name)
    writer.add_description(description)
    writer.add_license("mit")
    writer.add_license_name("MIT (weights); trained on the Python standard library, PSF License")
    writer.add_tags(["text-generation", "code", "speculative-decoding"])
    writer.add_languages(["en"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


class LayerSizes(Protocol):
    """Sizes of a network of equal layers."""

    @property
    def layers(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_width(self) -> int: ...
    @property
    def feed_forward(self) -> int: ...


def add_shape(writer: gguf.GGUFWriter, shape: LayerSizes) -> None:
    """Write the sizes that llama.cpp builds the network from."""
    add_sizes(
        writer,
        n_ctx=CONTEXT_LENGTH,
        width=shape.width,
        layers=shape.layers,
        feed_forward=shape.feed_forward,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_width=shape.head_width,
        rope_base=ROPE_BASE,
        epsilon=NORM_EPSILON,
    )


def add_tokenizer(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    """Write vocabulary, merges, special tokens and the chat template."""
    parts = merges_of(tokenizer)
    vocabulary = tokenizer.get_vocab()
    tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
    kinds = [gguf.TokenType.CONTROL if token == END_OF_TEXT else gguf.TokenType.NORMAL for token in tokens]
    end = vocabulary[END_OF_TEXT]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(parts)
    writer.add_bos_token_id(end)
    writer.add_eos_token_id(end)
    writer.add_eot_token_id(end)
    writer.add_pad_token_id(end)
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def merges_of(tokenizer: Tokenizer) -> list[str]:
    """Return the merges in order, each as "left right"."""
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]


def add_tensor(writer: gguf.GGUFWriter, key: str, values: np.ndarray) -> None:
    """Add one tensor: matrices in Q8_0, norm weights as they are. The names in the model are already GGUF's."""
    if values.ndim == 1:
        writer.add_tensor(key, values)
        return
    kind = gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor(key, gguf.quants.quantize(values, kind), raw_dtype=kind)


def load_exported(path: Path, into: Module) -> Module:
    """Replace the weights of `into` by those that a reader of the file gets back from the Q8_0 blocks."""
    reader = gguf.GGUFReader(path)
    state = {}
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        state[tensor.name] = torch.from_numpy(np.array(values, dtype=np.float32))
    into.load_state_dict(state)
    return into
