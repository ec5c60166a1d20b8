"""What two tokenizers have in common."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specrun.catalog.pairs import NOT_SHARED, SharedTokens, Vocabulary, share_of
from specrun.errors import PairError
from tests.catalog.test_pairs import listed

NORMAL, CONTROL, BYTE = 1, 3, 6


def vocabulary(kind: str, bos: int | None, eos: int | None, tokens: dict[str, int]) -> Vocabulary:
    return Vocabulary(
        kind, "default", bos, listed(*(name.encode() for name in tokens)), eos, None, types=tuple(tokens.values())
    )


LETTERS = vocabulary(
    "gpt2", None, 1,
    {"<|im_start|>": CONTROL, "<|im_end|>": CONTROL, "Ġthe": NORMAL, "Ċ": NORMAL, "Ã": NORMAL, "©": NORMAL, "é": NORMAL,
     "Ġunder": NORMAL, "Ġunderstand": NORMAL, "<tool>": CONTROL, "Ġ": NORMAL, "Ã©": NORMAL},
)  # fmt: skip
SIGNS = vocabulary(
    "llama", 0, 1,
    {"<s>": CONTROL, "</s>": CONTROL, "<0x0A>": BYTE, "<0xC3>": BYTE, "<0xA9>": BYTE, "<0x3C>": BYTE, "▁the": NORMAL,
     "▁": NORMAL, "▁under": NORMAL, "stand": NORMAL, "st": NORMAL, "é": NORMAL, "[INST]": CONTROL, "[/INST]": CONTROL,
     "<0x20>": BYTE, "tool": NORMAL, ">": NORMAL},
)  # fmt: skip


def test_tokens_of_the_same_bytes_are_the_same_however_they_are_written() -> None:
    shared = SharedTokens(LETTERS, SIGNS)
    names = [b"<|im_start|>", b"<|im_end|>", b"\xc4\xa0the", "Ċ".encode(), "Ã".encode(), "©".encode(), "Ã©".encode()]
    found = [SIGNS.tokens[shared.ids[LETTERS.tokens.index(name)]].decode() for name in names]
    assert found == ["[INST]", "[/INST]", "▁the", "<0x0A>", "<0xC3>", "<0xA9>", "é"]
    assert SIGNS.tokens[shared.ids[LETTERS.tokens.index("Ġ".encode())]].decode() == "▁", "not the byte"
    back = SharedTokens(SIGNS, LETTERS)
    assert LETTERS.tokens[back.ids[SIGNS.tokens.index("é".encode())]].decode() == "Ã©"
    assert LETTERS.tokens[back.ids[SIGNS.eos or 0]] == b"<|im_end|>", "what ends a text has a role"


def test_others_are_read_as_the_drafts_longest_tokens() -> None:
    shared = SharedTokens(LETTERS, SIGNS)
    token = LETTERS.tokens.index("Ġunderstand".encode())
    assert shared.ids[token] == NOT_SHARED
    assert [SIGNS.tokens[i].decode() for i in shared.read(token)] == ["▁under", "stand"]
    marker = LETTERS.tokens.index(b"<tool>")
    assert [SIGNS.tokens[i].decode() for i in shared.read(marker)] == ["<0x3C>", "tool", ">"]
    assert SharedTokens(LETTERS, replace(SIGNS, types=(CONTROL,) * len(SIGNS.types))).read(token) == (0,)


def test_the_share_counts_tokens_at_the_same_place() -> None:
    text = " the understand the"
    assert share_of(LETTERS, LETTERS, text) == 1
    assert share_of(LETTERS, SIGNS, text) == 2 / 3
    assert share_of(SIGNS, LETTERS, text) == 2 / 4


def test_kinds_that_write_tokens_in_another_way_are_refused() -> None:
    with pytest.raises(PairError, match="tokens of rwkv cannot be compared with those of gpt2"):
        SharedTokens(LETTERS, replace(SIGNS, kind="rwkv"))
    SharedTokens(replace(LETTERS, kind="rwkv"), replace(SIGNS, kind="rwkv"))
