"""What is emitted comes in order, the first text and the end at once, and what lies between them in few pieces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from specrun.engine.request import Request
from specrun.errors import SpecrunError
from specrun.sampling.logprobs import TokenLogprob
from specrun.serving import job as jobs
from specrun.serving.job import Answered, Asked, Event, Job, Piece
from specrun.serving.prompts import Prompt

ALONG, TO_THE_END = 600.0, None  # keep_alive_s of who reads along, and of who does not
NEVER = 600.0
END = Answered(cast(Any, None))  # only told apart from pieces here


def asked(n: int) -> list[Asked]:
    return [Asked(Prompt("x", [1]), Request([1]))] * n


def started(n: int = 1) -> Job:
    return Job(asked(n), lambda _: False)


def pieces(text: str) -> list[Piece]:
    """A piece for each letter, with a log-probability of its own."""
    return [Piece(letter, (TokenLogprob(ord(letter), -1.0, ()),)) for letter in text]


async def rest_of(events: AsyncIterator[Event | None]) -> list[str]:
    """What still comes: texts of pieces, and "|" for the end of an answer."""
    return ["|" if isinstance(event, Answered) else cast(Piece, event).text async for event in events]


async def emitted(job: Job, events: AsyncIterator[Event | None], *own: Piece) -> None:
    """Emit pieces that the reader gets one by one."""
    for piece in own:
        job.emit(piece)
        assert await anext(events) == piece


def test_the_first_pieces_and_the_end_come_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "GATHER_S", NEVER)

    async def run() -> None:
        job = started()
        events = job.events(ALONG)
        first, second, *others = pieces("abcdef")
        await emitted(job, events, first, second)
        for event in [*others, END]:
            job.emit(event)
        joined = await anext(events)
        assert joined == Piece("cdef", tuple(one for piece in others for one in piece.logprobs))
        assert await rest_of(events) == ["|"]

    asyncio.run(run())


def test_what_is_written_meanwhile_comes_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "GATHER_S", 0.05)

    async def run() -> None:
        job = started()
        events = job.events(ALONG)
        await emitted(job, events, *pieces("ab"))
        for piece in pieces("cd"):
            job.emit(piece)
        assert cast(Piece, await anext(events)).text == "cd"  # though the answer has no end yet

    asyncio.run(run())


def test_every_answer_of_a_job_begins_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "GATHER_S", NEVER)

    async def run() -> None:
        job = started(n=2)
        events = job.events(ALONG)
        for event in [*pieces("ab"), END]:
            job.emit(event)
        assert cast(Piece, await anext(events)).text == "ab"
        assert await anext(events) == END
        job.emit(pieces("c")[0])
        assert cast(Piece, await anext(events)).text == "c"
        for event in [*pieces("d"), END]:
            job.emit(event)
        assert await rest_of(events) == ["d", "|"]

    asyncio.run(run())


def test_who_does_not_read_along_gets_the_rest_with_the_end() -> None:
    async def run() -> None:
        job = started()
        events = job.events(TO_THE_END)
        first, *others = pieces("abcd")
        await emitted(job, events, first)
        for piece in others:
            job.emit(piece)
        following = asyncio.ensure_future(anext(events))
        await asyncio.sleep(2 * jobs.GATHER_S)
        assert not following.done()
        job.emit(END)
        assert cast(Piece, await following).text == "bcd"

    asyncio.run(run())


def test_an_error_comes_behind_what_was_written_before() -> None:
    async def run() -> None:
        job = started()
        events = job.events(ALONG)
        job.emit(pieces("a")[0])
        job.emit(SpecrunError("broken"))
        assert cast(Piece, await anext(events)).text == "a"
        with pytest.raises(SpecrunError, match="broken"):
            await anext(events)

    asyncio.run(run())


def test_silence_is_told() -> None:
    async def run() -> None:
        job = started()
        events = job.events(keep_alive_s=0.001)
        assert await anext(events) is None
        assert await anext(events) is None
        job.emit(END)
        while (event := await anext(events)) is None:
            pass
        assert event == END

    asyncio.run(run())


def test_gathering_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "GATHER_S", 0.01)

    async def run() -> None:
        job = started()
        events = job.events(ALONG)
        await emitted(job, events, *pieces("ab"))
        following = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0.05)
        assert not following.done()
        job.emit(END)
        assert await following == END

    asyncio.run(run())


def test_what_comes_behind_the_last_answer_is_no_error() -> None:
    async def run() -> None:
        job = started()
        for event in (Piece("a"), END, SpecrunError("the server is stopping")):
            job.emit(event)
        assert await rest_of(job.events(ALONG)) == ["a", "|"]

    asyncio.run(run())
