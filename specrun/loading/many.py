"""Many prompts in one sweep of the weights: texts that share the target's passes, as many at a time as have room."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from specrun.catalog.layer_states import kv_bytes_per_token
from specrun.decoding.completion import Completion
from specrun.decoding.engine import Engine
from specrun.decoding.generation import Request
from specrun.decoding.together import FEWEST, Conversations, SlotText, Together
from specrun.errors import PromptError
from specrun.interrupts import never
from specrun.llama.batch import common_prefix
from specrun.loading.placing import Here
from specrun.loading.run_options import RunOptions, context_length, most_texts

if TYPE_CHECKING:
    from specrun.loading.model import Model

MOST_TEXTS = 32  # at a time: a pass over more tokens takes so much longer on CPUs that it brings next to nothing
_ANSWER = 512  # tokens that an answer without a limit is expected to have at most; longer ones wait for room
_BYTES_PER_TOKEN = 4  # of a prompt; if there are fewer, texts may have to wait for room
_TEMPLATE = 32  # tokens that a chat template adds
# Shares of the free memory that the KV caches of all texts may take: of what weights leave, or little where they just
# fit, because it takes their place. Where they do not fit in any case, one more text brings more than the weights that
# it displaces: a pass over n texts takes a + b n milliseconds for n tokens.
_OF_SPARE, _OF_FITTING, _OF_STREAMED = 0.5, 0.1, 0.4
_LONGEST = 0.1  # share of the prompts, the longest, that is not counted: they wait for room

Key = TypeVar("Key")
KeyGiven = TypeVar("KeyGiven", covariant=True)


@dataclass(frozen=True)
class Crowd:
    """The texts to come, as far as they are known before the model is loaded."""

    n: int | None  # None if nobody knows how many
    n_bytes: int  # of a prompt, see `usual_bytes`
    max_tokens: int | None  # of each answer; None for no limit
    asked: int | None = None  # that the user wants to be written at a time; None leaves that to specrun


def usual_bytes(sizes: Sequence[int], otherwise: int) -> int:
    """The mean size of prompts without the longest ones, so that a few of them do not count for all. otherwise: where
    there is none.
    """
    ordered = sorted(sizes)
    usual = ordered[: len(ordered) - math.ceil(_LONGEST * (len(ordered) - 1))] if ordered else [otherwise]
    return sum(usual) // len(usual)


def with_room(options: RunOptions, crowd: Crowd, here: Here) -> tuple[RunOptions, str | None]:
    """The options with as many texts at a time as KV caches have room for, and why these are fewer than were asked."""
    file = here.target
    ctx_size = context_length(options.ctx_size, file.n_ctx_train)
    n_prompt = crowd.n_bytes // _BYTES_PER_TOKEN + _TEMPLATE
    n_tokens = min(n_prompt + (_ANSWER if crowd.max_tokens is None else crowd.max_tokens), ctx_size)
    loaded = [(file, options.settings)]
    if here.draft and options.drafts:
        loaded.append((here.draft, options.draft_settings))
    per_token = sum(sum(kv_bytes_per_token(one, of.type_k or "f16", of.type_v or "f16")) for one, of in loaded)
    spare = here.free_bytes - sum(one.n_bytes for one, _ in loaded)
    share = max(_OF_SPARE * spare, _OF_FITTING * here.free_bytes) if spare > 0 else _OF_STREAMED * here.free_bytes
    affordable = int(share) // max(per_token, 1)
    # The cells of one text's context are there in any case.
    most = max(affordable, ctx_size) // n_tokens
    wanted = min(crowd.asked or MOST_TEXTS, crowd.n or MOST_TEXTS, MOST_TEXTS)
    n = min(wanted, max(most, 1), most_texts(file) or wanted)
    why = None
    if crowd.asked and n < wanted:
        why = f"{n} of {wanted} texts at a time; the caches of more would take too much of the memory"
    if n < 2:
        return options, why
    return replace(options, parallel=n, shared_tokens=max(n * n_tokens, ctx_size)), why


class Source(Protocol[KeyGiven]):
    """Where the texts to be written come from.

    is_over: whether nothing more will come.
    """

    @property
    def is_over(self) -> bool: ...

    def take(self, may_wait: bool) -> tuple[KeyGiven, Request] | None:
        """The next text, by whatever names it to the caller; None if none is there, for which it may have waited."""


class Listed(Generic[Key]):
    """A source of texts that are all there."""

    def __init__(self, texts: Iterable[tuple[Key, Request]]) -> None:
        self._texts = iter(texts)
        self.is_over = False

    def take(self, may_wait: bool) -> tuple[Key, Request] | None:  # noqa: ARG002
        found = next(self._texts, None)
        self.is_over = found is None
        return found


class _OneOfMany(SlotText, Generic[Key]):
    def __init__(self, key: Key, completion: Completion, engine: Engine, interrupted: Callable[[], bool]) -> None:
        super().__init__(engine)
        self.key = key
        self.completion = completion
        self.generation = completion.generation(interrupted)


def write_many(
    model: Model,
    source: Source[Key],
    n: int | None = None,
    interrupted: Callable[[], bool] = never,
    count: Callable[[int], None] = lambda _: None,
) -> Iterator[tuple[Key, Completion | PromptError]]:
    """Write all texts of a source, and yield each when it is complete, or why it cannot be written.

    n: most texts at a time, at least 1; None for as many as the model has slots. interrupted: asked after every pass;
    the texts that are being written then end as they are, and no further one begins. count: called with the tokens that
    each pass committed. Raises LlamaError.
    """
    conversations = Conversations(model.slots.engines[:n], most_bytes=0)
    together: Together[_OneOfMany[Key]] = Together(model.slots, conversations)
    ahead: tuple[Key, Request] | None = None
    try:
        while not interrupted() and (together.texts or ahead or not source.is_over):
            together.wake()
            while not together.is_full:
                ahead = ahead or source.take(may_wait=not together.texts)
                if ahead is None or not _may_begin(together, ahead[1]):
                    break
                (key, request), ahead = ahead, None
                engine = conversations.slot_for(request.prompt, together.busy)
                text = _OneOfMany(key, model.complete(request, engine=engine), engine, interrupted)
                together.texts.append(text)
                try:
                    conversations.take_up(engine, request.prompt, together.make_room)
                    text.generation.begin()
                except PromptError as error:
                    together.texts.remove(text)
                    yield key, error
            for text, done in together.advance():
                text.completion.add(done)
                count(len(done.tokens))
                if text.completion.is_over:
                    together.texts.remove(text)
                    text.completion.end()
                    yield text.key, text.completion
        for text in together.texts:
            text.completion.end()
            yield text.key, text.completion
    finally:
        for engine in model.slots.engines[1:]:
            engine.reset()  # a text alone is written in the first slot, and may need the cells of all


def in_order(written: Iterable[tuple[int, Completion | PromptError]]) -> Iterator[Completion]:
    """What `write_many` yields, in the order of the numbers from 0 that name the texts. Raises errors in their turn."""
    waiting: dict[int, Completion | PromptError] = {}
    number = 0
    for key, found in written:
        waiting[key] = found
        while number in waiting:
            done = waiting.pop(number)
            if isinstance(done, PromptError):
                raise done
            yield done
            number += 1


def _may_begin(together: Together[_OneOfMany[Key]], request: Request) -> bool:
    """Whether there is room for a text, and no prompt is being read whose beginning it shares: that is read once."""
    if not together.fits(len(request.prompt), request.max_tokens):
        return False
    reading = [text.engine.target for text in together.texts if not text.waits and text.generation.is_reading]
    return all(common_prefix(target.tokens, request.prompt) < target.n_cached + FEWEST for target in reading)
