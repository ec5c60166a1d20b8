"""A job's answers, step by step, whatever shape they are sent in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from specrun.engine.completion import Completion
from specrun.errors import SpecrunError
from specrun.sampling.logprobs import TokenLogprob
from specrun.serving.answer_reader import AnswerReader, FinishName
from specrun.serving.api_error import of_model
from specrun.serving.job import Answered, Job, Piece
from specrun.serving.reading.deltas import Delta


@dataclass(frozen=True)
class Ending:
    """How an answer ended. name: OpenAI's for it. completion: the answer, with its counts and times."""

    name: FinishName
    completion: Completion


@dataclass(frozen=True)
class Step:
    """What came of the answer with this index.

    deltas: what was added to it. logprobs: those of the tokens that this text is made of, where they are asked for.
    ending: set once, in the answer's last step.
    """

    index: int
    deltas: list[Delta]
    logprobs: tuple[TokenLogprob, ...] = ()
    ending: Ending | None = None


async def steps(
    job: Job, make_reader: Callable[[], AnswerReader], keep_alive_s: float | None = None
) -> AsyncIterator[Step | None]:
    """Everything that is written, the first answer whole before the second begins.

    make_reader: gives a reader for each answer. Yields None after each `keep_alive_s` seconds without anything new.
    Raises ApiError for what ended the job early.
    """
    index, reader = 0, make_reader()
    try:
        async for event in job.events(keep_alive_s):
            if event is None:
                yield None
            elif isinstance(event, Piece):
                yield Step(index, reader.push(event.text), event.logprobs)
            elif isinstance(event, Answered):
                deltas = reader.finish()
                ending = Ending(reader.finish_name(event.completion.finish_reason), event.completion)
                yield Step(index, deltas, ending=ending)
                index, reader = index + 1, make_reader()
    except SpecrunError as error:
        raise of_model(error) from error
