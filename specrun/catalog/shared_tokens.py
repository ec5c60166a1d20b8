"""What two tokenizers have in common, by which a model drafts for a target with another tokenizer.

A token of the target is the draft's token of the same bytes, if there is one. Every other is read as the draft's own
tokens of its bytes, the longest first. So the draft reads the same text in its own tokens, where a token of the target
ends one of the draft's ends, too, and what was read once need not be read in another way when the text goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from specrun.catalog.pairs import FileVocabulary
from specrun.errors import PairError

NOT_SHARED = -1  # in place of the id of a token that the draft lacks
_NORMAL, _CONTROL, _USER_DEFINED, _BYTE = 1, 3, 4, 6  # of tokenizer.ggml.token_type
# How a normal token is written, by tokenizer.ggml.model: a letter for each byte, or a sign for a space.
_LETTERS, _SIGN = ("gpt2",), ("llama", "gemma4", "t5")
_SPACE_SIGN = "\u2581".encode()
# Each family has its own names for the markers of turns. The first that a vocabulary has is the one that it uses.
_TURN_STARTS = (
    b"<|im_start|>", b"<|start_header_id|>", b"<start_of_turn>", b"<|turn>", b"<|start|>", b"[INST]", b"<|user|>"
)  # fmt: skip
_TURN_ENDS = (b"<|im_end|>", b"<|eot_id|>", b"<end_of_turn>", b"<turn|>", b"<|end|>", b"[/INST]")
_LONGEST = 64  # bytes of a token that are looked for; longer ones are runs of spaces and signs
# A draft that shares less of the target's text is refused: less than a quarter of its guesses would be left.
LEAST_SHARE = 0.5
# The guesses that are left fall by about this power of the share: of a draft that guesses every token right, 62 % were
# left at 70 % of a text, and 68 % at 86 % (docs/universal-drafts.md).
_POWER = 2


def check_comparable(target: FileVocabulary, draft: FileVocabulary) -> None:
    """Raise PairError for two kinds of tokenizers whose tokens cannot be compared."""
    if target.kind != draft.kind and not {target.kind, draft.kind} <= {*_LETTERS, *_SIGN}:
        why = f"tokens of {draft.kind} cannot be compared with those of {target.kind}"
        raise PairError(f"this draft cannot draft for this target: {why}; choose a draft of the same family")


def token_spans(vocabulary: FileVocabulary, text: str) -> frozenset[tuple[int, int]]:
    """Where the vocabulary's tokens begin and end in a text, in bytes, if the longest possible ones are taken."""
    of_bytes = _by_bytes(_token_bytes(vocabulary), vocabulary.types)
    return frozenset(span for span, _ in _pieces(text.encode(), of_bytes))


def share_of(target: frozenset[tuple[int, int]], draft: frozenset[tuple[int, int]]) -> float:
    """The share of the target's tokens of a text that the draft has, too, by their spans."""
    return len(target & draft) / max(len(target), 1)


def what_is_shared(share: float) -> str:
    """What a share of the text means for a draft, as a clause."""
    left = f"about {share**_POWER:.0%} of what a draft of the same family guesses"
    return f"another tokenizer, which shares {share:.0%} of the text, so it guesses {left}"


class SharedTokens:
    """The tokens of a target in the vocabulary of a draft. Raises PairError as `check_comparable`.

    ids: int64[n], by the target's ids: the draft's id of the same token, or NOT_SHARED.
    bos: what the target begins a text with, if anything. begin: what the draft begins it with instead.
    """

    def __init__(self, target: FileVocabulary, draft: FileVocabulary) -> None:
        check_comparable(target, draft)
        self._bytes = _token_bytes(target)
        self._of_bytes = _by_bytes(_token_bytes(draft), draft.types)
        self.bos = target.bos
        self.begin = () if draft.bos is None else (draft.bos,)
        same = {(name, kind): i for i, (name, kind) in enumerate(zip(draft.tokens, draft.types, strict=True))}
        special = _special(draft)
        of_draft = _roles(draft)
        by_role = {token: of_draft[role] for role, token in _roles(target).items() if role in of_draft}
        self.ids = np.full(len(target.tokens), NOT_SHARED, np.int64)
        for i, (name, kind) in enumerate(zip(target.tokens, target.types, strict=True)):
            if target.kind == draft.kind and (name, kind) in same:
                self.ids[i] = same[name, kind]
            elif kind == _CONTROL:
                self.ids[i] = special.get(name, by_role.get(i, NOT_SHARED))
            else:
                self.ids[i] = self._of_bytes.get(self._bytes[i], NOT_SHARED)
        self._read: dict[int, tuple[int, ...]] = {}

    def read(self, token: int) -> tuple[int, ...]:
        """One of the target's tokens as the draft reads it: at least one of its own."""
        read = self._read.get(token)
        if read is None:
            same = int(self.ids[token])
            pieces = [] if same >= 0 else _pieces(self._bytes[token], self._of_bytes)
            read = self._read[token] = (same,) if same >= 0 else tuple(i for _, i in pieces) or (0,)
        return read


def _token_bytes(vocabulary: FileVocabulary) -> list[bytes]:
    """The bytes that each token stands for, of control tokens those of its name."""
    named = zip(vocabulary.tokens, vocabulary.types, strict=True)
    return [_bytes_of(name, kind, vocabulary.kind) for name, kind in named]


def _bytes_of(name: bytes, kind: int, tokenizer: str) -> bytes:
    try:
        if kind == _BYTE:
            return bytes([int(name[1:-1], 16)])  # <0x0A>
        if kind == _NORMAL and tokenizer in _LETTERS:
            return name.decode().translate(_BYTE_OF_LETTER).encode("latin-1")
    except ValueError:  # no such name
        return name
    return name.replace(_SPACE_SIGN, b" ") if kind == _NORMAL and tokenizer in _SIGN else name


def _byte_of_letter() -> dict[int, int]:
    """GPT-2's alphabet: a printable letter for each byte."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: byte for byte in printable} | {256 + i: byte for i, byte in enumerate(others)}


_BYTE_OF_LETTER = _byte_of_letter()


def _by_bytes(tokens: Sequence[bytes], types: Sequence[int]) -> dict[bytes, int]:
    """Ids of the tokens that text is made of. The token of a character counts before the one of a single byte."""
    by_kind: dict[bool, dict[bytes, int]] = {True: {}, False: {}}
    for i, (data, kind) in enumerate(zip(tokens, types, strict=True)):
        if data and kind in (_NORMAL, _USER_DEFINED, _BYTE):
            by_kind[kind == _BYTE].setdefault(data, i)
    return by_kind[True] | by_kind[False]


def _special(vocabulary: FileVocabulary) -> dict[bytes, int]:
    """Ids of the tokens that stand for no text of their own, or that users added, by name."""
    named = enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True))
    return {name: i for i, (name, kind) in named if kind in (_CONTROL, _USER_DEFINED)}


def _roles(vocabulary: FileVocabulary) -> dict[str, int]:
    """Ids of the tokens that end a text and begin and end a turn, by role."""
    special = _special(vocabulary)
    end = next((special[name] for name in _TURN_ENDS if name in special), vocabulary.eos)
    start = next((special[name] for name in _TURN_STARTS if name in special), None)
    roles = {"end of text": vocabulary.eos, "end of turn": end, "start of turn": start}
    return {role: token for role, token in roles.items() if token is not None}


def _pieces(data: bytes, of_bytes: Mapping[bytes, int]) -> list[tuple[tuple[int, int], int]]:
    """The tokens of `data`, the longest first, each as ((start, end), id). Bytes without a token are left out."""
    pieces, start = [], 0
    while start < len(data):
        ends = range(min(start + _LONGEST, len(data)), start, -1)
        end = next((end for end in ends if data[start:end] in of_bytes), None)
        if end:
            pieces.append(((start, end), of_bytes[data[start:end]]))
        start = end or start + 1
    return pieces
