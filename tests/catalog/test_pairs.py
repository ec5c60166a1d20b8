"""Which tokenizers make a pair."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import llama_cpp
import pytest

from specrun.catalog.entries import catalog
from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.gguf_header import LENGTH
from specrun.catalog.pairs import (
    _PRES_ALWAYS_WITH_BOS,
    _PRES_WITH_BOS,
    Vocabulary,
    check_families,
    check_sizes,
    first_difference,
    read_vocabulary,
    warnings,
)
from specrun.errors import PairError
from specrun.llama import LlamaModel, library
from tests.models import Reader, metadata_of, random_gemma3, write_tensors


def listed(*tokens: bytes) -> bytes:
    """Tokens as a file has them."""
    return b"".join(LENGTH.pack(len(token)) + token for token in tokens)


TARGET = Vocabulary("gpt2", "qwen2", None, listed(b"a", b"b", b"<|end|>"), 2, "{{ messages }}")


def test_the_same_tokenizer_makes_a_pair() -> None:
    assert first_difference(TARGET, replace(TARGET)) is None


@pytest.mark.parametrize("tokens", [TARGET.tokens[:2], (*TARGET.tokens, b"<|unused|>")])
def test_a_vocabulary_that_was_padded_or_cut_makes_a_pair(tokens: tuple[bytes, ...]) -> None:
    assert first_difference(TARGET, replace(TARGET, listed=listed(*tokens))) is None


@pytest.mark.parametrize(
    ("draft", "part"),
    [
        (replace(TARGET, kind="llama"), "the target's tokenizer is gpt2, the draft's llama"),
        (replace(TARGET, listed=listed(b"a", b"B", b"x")), "token 1 is 'b' in the target and 'B' in the draft"),
        (replace(TARGET, pre="llama-bpe"), "splits text as qwen2, the draft as llama-bpe"),
        (replace(TARGET, bos=2), "begins a text with no token, the draft with token 2"),
    ],
)
def test_the_first_difference_is_named(draft: Vocabulary, part: str) -> None:
    assert part in str(first_difference(TARGET, draft))


def test_the_embedded_pair_is_one(demo_target: Path, demo_draft: Path) -> None:
    target, draft = GgufFile.read(demo_target), GgufFile.read(demo_draft)
    assert first_difference(read_vocabulary(target), read_vocabulary(draft)) is None
    assert target.n_bytes > 1.5 * draft.n_bytes
    assert target.chat_template


# --- files ---------------------------------------------------------------------------------------------------------


def test_the_vocabulary_of_a_file_is_that_of_the_loaded_model(demo_target: Path, tmp_path: Path) -> None:
    for path in (demo_target, random_gemma3(tmp_path / "gemma.gguf", window=32)):
        file = read_vocabulary(GgufFile.read(path))
        with LlamaModel(path) as model:
            assert file.tokens == tuple(llama_cpp.llama_vocab_get_text(model.vocab, i) for i in range(model.n_vocab))
            bos = llama_cpp.llama_vocab_bos(model.vocab) if llama_cpp.llama_vocab_get_add_bos(model.vocab) else None
            assert file.bos == bos


WITHOUT_BOS = ("default", "qwen2", "qwen35", "smollm", "deepseek-v3", "gpt-4o", "kimi-k2", "gpt-2")


@pytest.mark.parametrize("pre", [*WITHOUT_BOS, *_PRES_WITH_BOS, *_PRES_ALWAYS_WITH_BOS])
def test_bos_begins_a_text_where_llama_cpp_says_so(pre: str, demo_target: Path, tmp_path: Path) -> None:
    library.start()
    described = metadata_of(Reader(demo_target))
    assert described["tokenizer.ggml.model"] == "gpt2"
    for says in (None, False, True):
        changed = {"tokenizer.ggml.pre": pre, "tokenizer.ggml.add_bos_token": says}
        path = write_tensors(tmp_path / f"{says}.gguf", described | changed, [])
        params = llama_cpp.llama_model_default_params()
        params.vocab_only = True
        model = llama_cpp.llama_model_load_from_file(os.fsencode(path), params)
        vocab = llama_cpp.llama_model_get_vocab(model)
        bos = llama_cpp.llama_vocab_bos(vocab) if llama_cpp.llama_vocab_get_add_bos(vocab) else None
        llama_cpp.llama_model_free(model)
        assert read_vocabulary(GgufFile.read(path)).bos == bos, says


def test_what_only_makes_guesses_worse_is_a_warning() -> None:
    target = TARGET
    assert warnings(target, target) == ()
    assert warnings(target, replace(target, eos=1)) == ("the target ends a text with token 2, the draft with 1",)
    assert "no chat template" in warnings(target, replace(target, chat_template=None))[0]
    assert "another chat template" in warnings(target, replace(target, chat_template="{{ x }}"))[0]
    assert warnings(replace(target, chat_template=None), replace(target, chat_template=None)) == ()


def test_families_that_the_catalog_knows_to_differ_are_told_apart() -> None:
    entries = catalog()
    check_families(entries["qwen-14b"], entries["qwen-coder-0.5b"])
    check_families(entries["qwen-14b"], None)
    with pytest.raises(PairError, match=r"llama-1b has another tokenizer than qwen-14b .* llama3 and qwen2.5"):
        check_families(entries["qwen-14b"], entries["llama-1b"])
    check_families(replace(entries["qwen-14b"], other_drafts={"llama-1b": 90}), entries["llama-1b"])


def test_a_draft_that_is_bigger_is_to_be_swapped() -> None:
    check_sizes(5, 5)
    with pytest.raises(PairError, match=r"bigger than the target \(4.00 GB\); swap"):
        check_sizes(4_000_000_000, 9_000_000_000)
