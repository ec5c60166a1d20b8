"""Whether a draft fits a target: how their tokenizers differ, what two of them have in common, by which a model drafts
for a target with another tokenizer, and the sizes of models.

A token of the target is the draft's token of the same bytes, if there is one. Every other is read as the draft's own
tokens of its bytes, the longest first. So the draft reads the same text in its own tokens, where a token of the target
ends one of the draft's ends, too, and what was read once need not be read in another way when the text goes on.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from specrun.catalog.entries import Entry
from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.gguf_header import each_string
from specrun.display_text import size_text
from specrun.errors import ModelFileError, PairError

_NO_TOKENIZER = ("none", "no_vocab")  # values of tokenizer.ggml.model with which llama.cpp makes none
# Where llama.cpp adds BOS if the file does not say whether to (src/llama-vocab.cpp): by tokenizer.ggml.model, and of
# those that encode byte pairs, the only ones with a tokenizer.ggml.pre that counts, by that.
_KINDS_WITH_BOS = ("llama", "bert")
_BYTE_PAIRS = ("gpt2", "gemma4", "hybriddna", "whitespace")
_PRES_WITH_BOS = (
    "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano", "tekken",
    "chameleon",
)  # fmt: skip
_PRES_ALWAYS_WITH_BOS = ("gemma4", "granite-embed-multi-311m")  # whatever the file says


@dataclass(frozen=True)
class Vocabulary:
    """The tokenizer in a file. Two models that share it have the same ids; what follows `listed` only influences how
    often drafted tokens are accepted.
    """

    kind: str  # tokenizer.ggml.model, e.g. `gpt2` for byte-pair encoding
    pre: str  # tokenizer.ggml.pre: how text is split before it is tokenized
    bos: int | None  # id of the token that begins every text; None if there is none
    listed: bytes  # the tokens by id, as `Metadata.strings` gives them
    eos: int | None  # id of the token that ends a text; None if there is none
    chat_template: str | None
    types: tuple[int, ...] = ()  # by id, llama.cpp's numbers: 1 for text, 3 for control tokens, 6 for bytes

    @functools.cached_property
    def tokens(self) -> tuple[bytes, ...]:
        """The tokens by id. To take 150,000 apart takes 0.1 s, which a pair with the same ones does without."""
        return tuple(each_string(self.listed))


def check_tokenizer(file: GgufFile) -> None:
    """Raise ModelFileError for a model without a tokenizer: at its first text llama.cpp would end the process."""
    if file.metadata.get("tokenizer.ggml.model", "none") in _NO_TOKENIZER:
        raise ModelFileError(f"{file.path} has no tokenizer, without which there are no texts; choose another file")


def read_vocabulary(file: GgufFile) -> Vocabulary:
    """The vocabulary of a model file."""
    metadata = file.metadata
    kind = str(metadata.get("tokenizer.ggml.model", "none"))
    pre = "gemma4" if kind == "gemma4" else str(metadata.get("tokenizer.ggml.pre", "default"))
    usual = kind in _KINDS_WITH_BOS or (kind in _BYTE_PAIRS and pre in _PRES_WITH_BOS)
    is_always = kind in _BYTE_PAIRS and pre in _PRES_ALWAYS_WITH_BOS
    adds_bos = is_always or metadata.get("tokenizer.ggml.add_bos_token", usual)
    n_tokens = metadata.n_strings("tokenizer.ggml.tokens") or 0
    types = metadata.get("tokenizer.ggml.token_type")
    return Vocabulary(
        kind=kind,
        pre=pre,
        bos=metadata.get("tokenizer.ggml.bos_token_id") if adds_bos else None,
        listed=metadata.strings("tokenizer.ggml.tokens"),
        eos=metadata.get("tokenizer.ggml.eos_token_id"),
        chat_template=file.chat_template,
        types=tuple(types) if isinstance(types, list) and len(types) == n_tokens else (1,) * n_tokens,
    )


def check_sizes(target: int, draft: int) -> None:
    """Raise PairError if the draft is bigger than the target; both in bytes."""
    if draft > target:
        sizes = f"the draft ({size_text(draft)}) is bigger than the target ({size_text(target)})"
        raise PairError(f"{sizes}; swap --target and --draft")


def check_families(target: Entry | None, draft: Entry | None) -> None:
    """Raise PairError if the catalog knows that two models have different tokenizers, but not what these share."""
    if not (target and draft and target.family) or draft.family in (None, target.family):
        return
    if draft.alias not in target.other_drafts:
        raise PairError(
            f"{draft.alias} has another tokenizer than {target.alias} (their families are {draft.family} and "
            f"{target.family}), and how much text they share is known once it is here; `specrun models pairs "
            f"{target.alias}` lists what fits, `specrun pull {draft.alias}` fetches it anyway"
        )


def first_difference(target: Vocabulary, draft: Vocabulary) -> str | None:
    """How the tokenizers differ, by the ids that both have (families pad them); None if ids mean the same to both."""
    if target.kind != draft.kind:
        return f"the target's tokenizer is {target.kind}, the draft's {draft.kind}"
    shorter, longer = sorted((target.listed, draft.listed), key=len)
    if not longer.startswith(shorter):
        both = enumerate(zip(each_string(target.listed), each_string(draft.listed), strict=False))
        first, pair = next((i, pair) for i, pair in both if pair[0] != pair[1])
        ours, theirs = (repr(token.decode("utf-8", errors="replace")) for token in pair)
        return f"token {first} is {ours} in the target and {theirs} in the draft"
    if target.pre != draft.pre:
        return f"the target splits text as {target.pre}, the draft as {draft.pre}"
    if target.bos != draft.bos:
        ours, theirs = ("no token" if bos is None else f"token {bos}" for bos in (target.bos, draft.bos))
        return f"the target begins a text with {ours}, the draft with {theirs}"
    return None


def warnings(target: Vocabulary, draft: Vocabulary) -> tuple[str, ...]:
    """Clauses that say why a fitting draft may guess badly. The output is the target's in any case."""
    reasons = []
    if target.eos != draft.eos:
        reasons.append(f"the target ends a text with token {target.eos}, the draft with {draft.eos}")
    if target.chat_template and not draft.chat_template:
        reasons.append("the draft has no chat template: it was not trained to chat")
    elif target.chat_template != draft.chat_template:
        reasons.append("the draft was trained with another chat template")
    return tuple(reasons)


NOT_SHARED = -1  # in place of the id of a token that the draft lacks
_NORMAL, _CONTROL, _USER_DEFINED, _BYTE = 1, 3, 4, 6  # of tokenizer.ggml.token_type
# How a normal token is written, by tokenizer.ggml.model: a letter for each byte, or a sign for a space.
_LETTERS, _SIGN = ("gpt2",), ("llama", "gemma4", "t5")
_SPACE_SIGN = "\u2581".encode()
# GPT-2's alphabet: a printable letter for each byte.
_PRINTABLE = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
_BYTE_OF_LETTER = {byte: byte for byte in _PRINTABLE} | {256 + i: byte for i, byte in enumerate(_OTHERS)}
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


def check_comparable(target: Vocabulary, draft: Vocabulary) -> None:
    """Raise PairError for two kinds of tokenizers whose tokens cannot be compared."""
    if target.kind != draft.kind and not {target.kind, draft.kind} <= {*_LETTERS, *_SIGN}:
        why = f"tokens of {draft.kind} cannot be compared with those of {target.kind}"
        raise PairError(f"this draft cannot draft for this target: {why}; choose a draft of the same family")


def share_of(target: Vocabulary, draft: Vocabulary, text: str) -> float:
    """The share of the target's tokens of a text that the draft has, too, by where they begin and end."""
    ours, theirs = _spans(target, text), _spans(draft, text)
    return len(ours & theirs) / max(len(ours), 1)


@functools.cache
def _spans(vocabulary: Vocabulary, text: str) -> frozenset[tuple[int, int]]:
    """Where the tokens begin and end in a text, in bytes, if the longest possible ones are taken."""
    return frozenset(span for span, _ in _pieces(text.encode(), _by_bytes(vocabulary)))


def what_is_shared(share: float) -> str:
    """What a share of the text means for a draft, as a clause."""
    left = f"about {share**_POWER:.0%} of what a draft of the same family guesses"
    return f"another tokenizer, which shares {share:.0%} of the text, so it guesses {left}"


class SharedTokens:
    """The tokens of a target in the vocabulary of a draft. Raises PairError as `check_comparable`.

    ids: int64[n], by the target's ids: the draft's id of the same token, or NOT_SHARED.
    bos: what the target begins a text with, if anything. begin: what the draft begins it with instead.
    """

    def __init__(self, target: Vocabulary, draft: Vocabulary) -> None:
        import numpy as np

        check_comparable(target, draft)
        self._bytes = _token_bytes(target)
        self._of_bytes = _by_bytes(draft)
        self.bos = target.bos
        self.begin = () if draft.bos is None else (draft.bos,)
        same = {(name, kind): i for i, (name, kind) in enumerate(zip(draft.tokens, draft.types, strict=True))}
        special, of_draft = _special(draft), _roles(draft)
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
        if token not in self._read:
            same = int(self.ids[token])
            pieces = [same] if same >= 0 else [i for _, i in _pieces(self._bytes[token], self._of_bytes)]
            self._read[token] = tuple(pieces) or (0,)
        return self._read[token]


def _token_bytes(vocabulary: Vocabulary) -> list[bytes]:
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


def _by_bytes(vocabulary: Vocabulary) -> dict[bytes, int]:
    """Ids of the tokens that text is made of. The token of a character counts before the one of a single byte."""
    by_kind: dict[bool, dict[bytes, int]] = {True: {}, False: {}}
    for i, (data, kind) in enumerate(zip(_token_bytes(vocabulary), vocabulary.types, strict=True)):
        if data and kind in (_NORMAL, _USER_DEFINED, _BYTE):
            by_kind[kind == _BYTE].setdefault(data, i)
    return by_kind[True] | by_kind[False]


def _special(vocabulary: Vocabulary) -> dict[bytes, int]:
    """Ids of the tokens that stand for no text of their own, or that users added, by name."""
    named = enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True))
    return {name: i for i, (name, kind) in named if kind in (_CONTROL, _USER_DEFINED)}


def _roles(vocabulary: Vocabulary) -> dict[str, int]:
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
