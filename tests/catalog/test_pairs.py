"""Which tokenizers make a pair."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specrun.catalog.pairs import check_pair
from specrun.errors import PairError
from specrun.llama import LlamaModel
from specrun.llama.model import Vocabulary

TARGET = Vocabulary("gpt2", "qwen2", None, (b"a", b"b", b"<|end|>"))


def test_the_same_tokenizer_makes_a_pair() -> None:
    check_pair(TARGET, replace(TARGET))


@pytest.mark.parametrize("tokens", [TARGET.tokens[:2], (*TARGET.tokens, b"<|unused|>")])
def test_a_vocabulary_that_was_padded_or_cut_makes_a_pair(tokens: tuple[bytes, ...]) -> None:
    check_pair(TARGET, replace(TARGET, tokens=tokens))


@pytest.mark.parametrize(
    ("draft", "part"),
    [
        (replace(TARGET, kind="llama"), "the target's tokenizer is gpt2, the draft's llama"),
        (replace(TARGET, tokens=(b"a", b"B", b"x")), "token 1 is 'b' in the target and 'B' in it"),
        (replace(TARGET, pre="llama-bpe"), "splits text as qwen2, the draft as llama-bpe"),
        (replace(TARGET, bos=2), "begins a text with no token, the draft with token 2"),
    ],
)
def test_the_first_difference_is_named(draft: Vocabulary, part: str) -> None:
    with pytest.raises(PairError, match=part) as error:
        check_pair(TARGET, draft)
    assert "choose a draft of the same family" in str(error.value)


def test_the_embedded_pair_is_one(demo_target: Path, demo_draft: Path) -> None:
    with LlamaModel(demo_target) as target, LlamaModel(demo_draft) as draft:
        check_pair(target.vocabulary, draft.vocabulary)
        assert target.n_bytes > 3 * draft.n_bytes
        assert target.chat_template
