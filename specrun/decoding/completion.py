"""One answer: its text, its token ids, why it ended and what it cost."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator, Sequence

from specrun.decoding.engine import Engine
from specrun.decoding.generation import Generation, Request, StepOfText
from specrun.decoding.passes import write_alone
from specrun.decoding.prompt_states import LONG, PromptStates
from specrun.decoding.statistics import FinishReason, Statistics
from specrun.interrupts import never
from specrun.llama.grammar import Grammar, TriggeredGrammar
from specrun.reading.deltas import undecided
from specrun.sampling.sampler import TokenLogprob
from specrun.speculation.controllers.chooser import PlanChooser
from specrun.speculation.planning.guide import PassRecord


class Completion:
    """The answer to one request. It is empty until `stream` or `run` writes it.

    text: the text so far, without the stop text.
    token_ids: the committed tokens without end-of-generation. With a stop text, up to the token that completed it.
    logprobs: those of `token_ids`, if the request asks for them.
    finish_reason: "stop" (the model or a stop text ended it), "length" (max_tokens), "context" (the context is full)
        or "interrupted".
    statistics: counts and times.
    plans: what chooses each pass's plan.
    is_over: whether nothing more will be written.
    last_drafted: tree and accepted path of the last pass whose token tree had more than the root; None if none had.
    """

    def __init__(
        self,
        engine: Engine,
        request: Request,
        plans: PlanChooser,
        grammar: Grammar | TriggeredGrammar | None = None,
        states: PromptStates | None = None,
    ) -> None:
        """states: of prompts on disk, for `stream`."""
        self.request = request
        self.plans = plans
        self.text = ""
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.finish_reason: FinishReason = "interrupted"
        self.statistics = Statistics(prompt_tokens=len(request.prompt))
        self.last_drafted: PassRecord | None = None
        self.is_over = False
        self._text_stream = TextStream(self.token_bytes, request.stops)
        self._engine = engine
        self._grammar = grammar
        self._states = states

    @property
    def is_unfinished(self) -> bool:
        """Whether there is a grammar and the text is only the beginning of one that it allows."""
        return self._grammar is not None and not self._grammar.is_complete(self.token_ids)

    @property
    def prompt_tokens_read(self) -> int:
        """Tokens of the prompt that are in the KV cache, while it is read or afterwards."""
        target, prompt = self._engine.target, self.request.prompt
        return min(target.n_cached, len(prompt)) if target.tokens[: len(prompt)] == prompt else 0

    @property
    def reading(self) -> tuple[int, float]:
        """Tokens of the prompt that were computed so far, and the seconds that this took."""
        s = self.statistics
        return max(self.prompt_tokens_read - (s.prompt_tokens - s.prompt_tokens_decoded), 0), s.reading_seconds

    @property
    def tokens_with_prompt(self) -> list[int] | None:
        """Tokens of the prompt and of the whole text; None if they say something else, as where a stop text cut it off.

        With them the text goes on in the cache. Tokenized again, it might be split differently.
        """
        written = b"".join(self.token_bytes(token) for token in self.token_ids).decode("utf-8", errors="replace")
        return self.request.prompt + self.token_ids if written == self.text else None

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token has in this answer's text."""
        return self._engine.target.context.model.token_bytes(token, token in self.request.shown)

    def stream(self, interrupted: Callable[[], bool] = never) -> Iterator[str]:
        """Write the answer, and yield each piece of text as soon as it is certain.

        `interrupted` is called after every pass; if it returns True, the answer ends. Raises PromptError if the prompt
        does not fit the context.
        """
        generation = self.generation(interrupted)
        for done in write_alone(generation, self._states):
            yield self.add(done)
            if self.is_over:
                break
        if not self._text_stream.stopped:
            yield self.end()
        if self._states:
            self._states.has_read(*self.reading)
            self._states.keep(self._engine, LONG)

    def generation(self, interrupted: Callable[[], bool] = never) -> Generation:
        """The text whose passes are for `add`; `stream` makes them itself."""
        generation = Generation(self._engine, self.request, self.plans, self._grammar, interrupted)
        self.statistics = generation.statistics
        return generation

    def add(self, done: StepOfText) -> str:
        """Add what a pass has written. Returns the text that is certain now."""
        if len(done.tree) > 1:
            self.last_drafted = PassRecord(done.draft, done.accepted)  # the step holds the sampler and the drafter
        piece, n_before = "", len(self.token_ids)
        for token in done.tokens:
            self.token_ids.append(token)
            piece += self._text_stream.push(token)
            if self._text_stream.stopped:
                break
        self.logprobs += done.logprobs[: len(self.token_ids) - n_before]
        self.text += piece
        if self._text_stream.stopped:
            self.finish_reason, self.is_over = "stop", True
        elif done.finish:
            self.finish_reason, self.is_over = done.finish, True
        return piece

    def end(self) -> str:
        """The rest of the text, when there will be no further pass."""
        self.is_over = True
        rest = self._text_stream.finish()
        self.text += rest
        return rest

    def run(self) -> Completion:
        """Write the whole answer and return this completion."""
        for _ in self.stream():
            pass
        return self


class TextStream:
    """Turns token ids into text. What may be the beginning of a stop text is held back until later tokens decide.

    token_bytes: gives the bytes of a token.
    stops: stop texts; the text ends before the first of them.
    stopped: whether a stop text was met.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], stops: Sequence[str] = ()) -> None:
        self._token_bytes = token_bytes
        self._stops = [stop for stop in stops if stop]
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self.stopped = False

    def push(self, token: int) -> str:
        """Add a token, and return the text that is certain now."""
        self._held += self._decoder.decode(self._token_bytes(token))
        return self._release(final=False)

    def finish(self) -> str:
        """The text that is still held back; an unfinished character becomes U+FFFD."""
        if self.stopped:
            return ""
        self._held += self._decoder.decode(b"", final=True)
        return self._release(final=True)

    def _release(self, final: bool) -> str:
        stop_at = min((at for at in map(self._held.find, self._stops) if at >= 0), default=None)
        if stop_at is not None:
            self.stopped = True
            text, self._held = self._held[:stop_at], ""
            return text
        keep = 0 if final else undecided(self._held, self._stops)
        cut = len(self._held) - keep
        text, self._held = self._held[:cut], self._held[cut:]
        return text
