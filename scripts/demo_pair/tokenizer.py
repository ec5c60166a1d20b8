"""A byte-level BPE tokenizer that llama.cpp reads as the "gpt-2" kind."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from .corpus import Document

END_OF_TEXT = "<|endoftext|>"
# llama-cpp-python drops tokens of more than 32 bytes when it turns tokens into text.
LONGEST_TOKEN_BYTES = 31


def train_tokenizer(texts: Iterable[str], vocabulary_size: int) -> Tokenizer:
    """Learn merges. The split before merging is GPT-2's own, which GGUF names "gpt-2"."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        max_token_length=LONGEST_TOKEN_BYTES,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != vocabulary_size:
        raise ValueError(f"the text gave only {tokenizer.get_vocab_size()} of {vocabulary_size} tokens")
    return tokenizer


def encode_documents(tokenizer: Tokenizer, documents: Iterable[Document]) -> np.ndarray:
    """Return all documents as one int64 array of token ids [tokens], each followed by the end token."""
    end = tokenizer.get_vocab()[END_OF_TEXT]
    ids: list[int] = []
    for encoding in tokenizer.encode_batch([document.text for document in documents], add_special_tokens=False):
        ids.extend(encoding.ids)
        ids.append(end)
    return np.asarray(ids, dtype=np.int64)
