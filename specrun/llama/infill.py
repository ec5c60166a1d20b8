"""Prompts by which a model fills a gap in a text: it has tokens of its own for what stands before and after it."""

from __future__ import annotations

from collections.abc import Sequence

import llama_cpp

from specrun.llama.loaded_model import LlamaModel


def infill_tokens(
    model: LlamaModel, before: str, behind: str, files: Sequence[tuple[str, str]] = (), begun: str = ""
) -> list[int] | None:
    """Token ids of a prompt whose answer fills the gap; None if the model has no tokens for that.

    before, behind: the texts around the gap. files: names and texts of other files. begun: how the answer begins.
    As llama-server orders it: other files where the model has tokens for them (arXiv 2409.12186), else before all.
    """
    prefix, suffix, middle = (
        find(model.vocab)
        for find in (llama_cpp.llama_vocab_fim_pre, llama_cpp.llama_vocab_fim_suf, llama_cpp.llama_vocab_fim_mid)
    )
    if min(prefix, suffix, middle) < 0:
        return None
    repository, file = llama_cpp.llama_vocab_fim_rep(model.vocab), llama_cpp.llama_vocab_fim_sep(model.vocab)

    def read(text: str) -> list[int]:
        return model.tokenize(text, add_special=False, parse_special=False) if text else []

    bos = llama_cpp.llama_vocab_bos(model.vocab) if llama_cpp.llama_vocab_get_add_bos(model.vocab) else -1
    tokens = [bos] if bos >= 0 else []
    if file < 0:
        for _, text in files:
            tokens += read(f"{text}\n\n")
    elif files:
        tokens += [repository, *read("project\n")] if repository >= 0 else []
        for name, text in files:
            tokens += [file, *read(f"{name}\n{text}\n")]
        tokens += [file, *read("file\n")]
    return [*tokens, prefix, *read(before), suffix, *read(behind), middle, *read(begun)]
