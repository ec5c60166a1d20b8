"""One answer: the passes turned into text, with everything a caller wants to know at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from specrun.engine.decoding import Engine, never
from specrun.engine.request import Request
from specrun.engine.statistics import FinishReason, Pass, Statistics
from specrun.engine.text_stream import TextStream
from specrun.llama.grammar import Grammar
from specrun.speculation.controllers.chooser import PlanChooser


class Completion:
    """The text so far and, once it has been streamed, how it ended.

    text: what was written, without the stop text.
    token_ids: committed tokens without end-of-generation. With a stop text, up to the token that completed it.
    finish_reason: "stop" (the model or a stop text ended it), "length", "context" (full) or "interrupted".
    statistics: what it cost.
    plans: what chose each pass's plan.
    last_drafted: the last pass that had a token tree to check.
    """

    def __init__(self, engine: Engine, request: Request, plans: PlanChooser, grammar: Grammar | None = None) -> None:
        self.request = request
        self.plans = plans
        self.text = ""
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason = "interrupted"
        self.statistics = Statistics(prompt_tokens=len(request.prompt))
        self.last_drafted: Pass | None = None
        self._engine = engine
        self._grammar = grammar

    @property
    def is_unfinished(self) -> bool:
        """Whether there is a grammar, and the text is only the beginning of one that it allows."""
        return self._grammar is not None and not self._grammar.is_complete(self.token_ids)

    def stream(self, interrupted: Callable[[], bool] = never) -> Iterator[str]:
        """Write the answer, yielding each piece of text as soon as it is certain. `interrupted` is asked after every
        pass and ends the answer. Raises PromptError if the prompt does not fit the context.
        """
        text = TextStream(self._engine.target.context.model.token_bytes, self.request.stops)
        passes = self._engine.generate(self.request, self.plans, self._grammar, interrupted)
        self.statistics = passes.statistics
        for one in passes:
            if len(one.tree) > 1:
                self.last_drafted = one
            yield self._take(one, text)
            if text.stopped:
                self.finish_reason = "stop"
                return
            if one.finish:
                self.finish_reason = one.finish
        rest = text.finish()
        self.text += rest
        yield rest

    def run(self) -> Completion:
        """Write the whole answer."""
        for _ in self.stream():
            pass
        return self

    def _take(self, one: Pass, text: TextStream) -> str:
        piece = ""
        for token in one.tokens:
            self.token_ids.append(token)
            piece += text.push(token)
            if text.stopped:
                break
        self.text += piece
        return piece
