"""Whether a draft fits a target: both must read and write the same tokens."""

from __future__ import annotations

from typing import Protocol

from specrun.catalog.entries import Entry
from specrun.errors import PairError
from specrun.units import size_text


class VocabularyLike(Protocol):
    """A tokenizer's identity, as `specrun.llama.loaded_model.Vocabulary` gives it for a loaded model and
    `specrun.catalog.vocabulary.FileVocabulary` for a file.
    """

    @property
    def kind(self) -> str: ...
    @property
    def pre(self) -> str: ...
    @property
    def bos(self) -> int | None: ...
    @property
    def tokens(self) -> tuple[bytes, ...]: ...


class ChatVocabularyLike(VocabularyLike, Protocol):
    """The same with what decides only how often drafted tokens are accepted."""

    @property
    def eos(self) -> int | None: ...
    @property
    def chat_template(self) -> str | None: ...


def check_pair(target: VocabularyLike, draft: VocabularyLike) -> None:
    """Raise PairError naming the first difference. Vocabularies padded to different sizes are fine."""
    difference = first_difference(target, draft)
    if difference:
        raise PairError(f"this draft cannot draft for this target: {difference}; choose a draft of the same family")


def check_sizes(target: int, draft: int) -> None:
    """Raise PairError if the draft has more bytes than the target."""
    if draft > target:
        raise PairError(
            f"the draft ({size_text(draft)}) is bigger than the target ({size_text(target)}); swap --target and --draft"
        )


def check_families(target: Entry | None, draft: Entry | None) -> None:
    """Raise PairError if the catalog knows both and they are of different families."""
    if target and draft and target.family and draft.family and target.family != draft.family:
        raise PairError(
            f"{draft.alias} cannot draft for {target.alias}: their families, {draft.family} and {target.family}, have "
            f"different tokenizers; `specrun models pairs {target.alias}` lists what fits"
        )


def first_difference(target: VocabularyLike, draft: VocabularyLike) -> str | None:
    """What keeps the draft from drafting for the target, in words; None if nothing does.

    Tokens are compared where both vocabularies have them, because families pad them to different sizes.
    """
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


def warnings(target: ChatVocabularyLike, draft: ChatVocabularyLike) -> tuple[str, ...]:
    """What makes a fitting draft guess worse than it could, in words. The text stays the target's all the same."""
    found = []
    if target.eos != draft.eos:
        found.append(f"the target ends a text with token {target.eos}, the draft with {draft.eos}")
    if target.chat_template and not draft.chat_template:
        found.append("the draft has no chat template: it was not trained to chat")
    elif target.chat_template != draft.chat_template:
        found.append("the draft was trained with another chat template")
    return tuple(found)


def _shown(token: bytes) -> str:
    return repr(token.decode("utf-8", errors="replace"))


def _begin(bos: int | None) -> str:
    return "no token" if bos is None else f"token {bos}"
