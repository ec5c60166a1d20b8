"""One answer: the engine's steps turned into text, with everything a caller wants to know at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from specrun.engine.decoding import Engine, FinishReason, Statistics, Step
from specrun.engine.text_stream import TextStream
from specrun.llama.grammar import Grammar
from specrun.sampling import SamplingParameters
from specrun.speculation import PlanChooser


@dataclass(frozen=True)
class Request:
    """What to write. prompt: token ids. plans: chooses each pass's plan. stops: strings that end the text.
    grammar: what the text has to be.
    """

    prompt: list[int]
    sampling: SamplingParameters
    plans: PlanChooser
    max_tokens: int | None = None
    stops: Sequence[str] = ()
    grammar: Grammar | None = None


@dataclass
class Completion:
    """The text so far and, once `stream` is exhausted, how it ended.

    token_ids: committed tokens, end-of-generation left out; with a stop string, up to the token that completed it.
    last_drafted: the last pass that had a token tree to check.
    """

    engine: Engine
    request: Request
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason = "interrupted"
    last_drafted: Step | None = None

    @property
    def statistics(self) -> Statistics:
        return self.engine.statistics

    @property
    def is_unfinished(self) -> bool:
        """Whether there is a grammar, and the text is only the beginning of one that it allows."""
        grammar = self.request.grammar
        return grammar is not None and not grammar.is_complete(self.token_ids)

    def stream(self, interrupted: Callable[[], bool] = lambda: False) -> Iterator[str]:
        """Write the answer, yielding each piece of text as soon as it is certain."""
        request = self.request
        stream = TextStream(self.engine.target.context.model.token_bytes, request.stops)
        steps = self.engine.generate(
            request.prompt,
            request.sampling,
            request.plans,
            request.max_tokens,
            interrupted,
            constraint=request.grammar,
        )
        for step in steps:
            if len(step.tree) > 1:
                self.last_drafted = step
            yield self._take(step, stream)
            if stream.stopped:
                self.finish_reason = "stop"
                return
            if step.finish:
                self.finish_reason = step.finish
        rest = stream.finish()
        self.text += rest
        yield rest

    def _take(self, step: Step, stream: TextStream) -> str:
        piece = ""
        for token in step.tokens:
            self.token_ids.append(token)
            piece += stream.push(token)
            if stream.stopped:
                break
        self.text += piece
        return piece
