"""One request in the queue, and what becomes of it: written by the model's thread, read by that of HTTP."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from specrun.engine.completion import Completion
from specrun.engine.request import Request
from specrun.sampling.logprobs import TokenLogprob
from specrun.serving.api_error import ApiError
from specrun.serving.prompts import Prompt


@dataclass(frozen=True)
class Asked:
    """One answer that is wanted.

    prompt: as text and tokens. request: the engine's, with the prompt's tokens.
    anew: whether the whole prompt is read, whatever the caches hold of it.
    """

    prompt: Prompt
    request: Request
    anew: bool = False


@dataclass(frozen=True)
class Piece:
    """More of the answer that is being written. logprobs: of the tokens of `text`, where they are asked for."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class Answered:
    """An answer is complete; the next one, if there is any, begins."""

    completion: Completion


Event = Piece | Answered


class Job:
    """Answers that are written one after the other, without others between them. Make it where the event loop runs.

    leave: takes the job out of the queue, and says whether it was there.
    """

    def __init__(self, asked: Sequence[Asked], leave: Callable[[Job], bool]) -> None:
        self.asked = asked
        self._leave = leave
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event | Exception | None] = asyncio.Queue()
        self._cancelled = threading.Event()

    # --- the model's thread ---

    def emit(self, event: Event | Exception) -> None:
        """Tell the reader. An exception is the last event."""
        self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    def is_cancelled(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return self._cancelled.is_set()

    # --- the event loop's thread ---

    def cancel(self) -> None:
        """Nobody waits for the answer any more. It leaves the queue, or ends with the pass that is running."""
        self._cancelled.set()
        if self._leave(self):
            self._events.put_nowait(ApiError("the client has gone away"))

    async def events(self, keep_alive_s: float | None = None) -> AsyncIterator[Event | None]:
        """Everything that happens until all answers are complete; pieces that wait are put together.

        Yields None after each `keep_alive_s` seconds in which nothing happened. Raises what ended the job early.
        """
        n_left = len(self.asked)
        while n_left:
            event = await self._next(keep_alive_s)
            if isinstance(event, Piece):
                pieces = [event]
                while not self._events.empty():
                    following = self._events.get_nowait()
                    if not isinstance(following, Piece):
                        yield _joined(pieces)
                        event = following
                        break
                    pieces.append(following)
                else:
                    event = _joined(pieces)
            if isinstance(event, Exception):
                raise event
            n_left -= isinstance(event, Answered)
            yield event

    async def _next(self, keep_alive_s: float | None) -> Event | Exception | None:
        if keep_alive_s is None or not self._events.empty():
            return await self._events.get()
        # Cheaper than asyncio.wait_for, which makes a task: every pass comes by here, and shares its cores with this.
        alarm = self._loop.call_later(keep_alive_s, self._events.put_nowait, None)
        try:
            return await self._events.get()
        finally:
            alarm.cancel()


def _joined(pieces: Sequence[Piece]) -> Piece:
    if len(pieces) == 1:
        return pieces[0]
    return Piece("".join(piece.text for piece in pieces), tuple(one for piece in pieces for one in piece.logprobs))
