"""Whether a draft fits a target: both must read and write the same tokens."""

from __future__ import annotations

from typing import Protocol

from specrun.errors import PairError


class VocabularyLike(Protocol):
    """A tokenizer's identity, as `specrun.llama.model.Vocabulary` gives it."""

    @property
    def kind(self) -> str: ...
    @property
    def pre(self) -> str: ...
    @property
    def bos(self) -> int | None: ...
    @property
    def tokens(self) -> tuple[bytes, ...]: ...


def check_pair(target: VocabularyLike, draft: VocabularyLike) -> None:
    """Raise PairError naming the first difference. Vocabularies padded to different sizes are fine."""
    difference = _first_difference(target, draft)
    if difference:
        raise PairError(f"this draft cannot draft for this target: {difference}; choose a draft of the same family")


def _first_difference(target: VocabularyLike, draft: VocabularyLike) -> str | None:
    if target.kind != draft.kind:
        return f"the target's tokenizer is {target.kind}, the draft's {draft.kind}"
    common = min(len(target.tokens), len(draft.tokens))
    if target.tokens[:common] != draft.tokens[:common]:
        first = next(i for i in range(common) if target.tokens[i] != draft.tokens[i])
        return f"token {first} is {_shown(target.tokens[first])} in the target and {_shown(draft.tokens[first])} in it"
    if target.pre != draft.pre:
        return f"the target splits text as {target.pre}, the draft as {draft.pre}"
    if target.bos != draft.bos:
        return f"the target begins a text with {_begin(target.bos)}, the draft with {_begin(draft.bos)}"
    return None


def _shown(token: bytes) -> str:
    return repr(token.decode("utf-8", errors="replace"))


def _begin(bos: int | None) -> str:
    return "no token" if bos is None else f"token {bos}"
