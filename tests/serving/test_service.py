"""What is emitted comes in order, the first text and the end at once, and what lies between them in few pieces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest

from specrun.decoding.completion import Completion
from specrun.decoding.generation import Request
from specrun.errors import SpecrunError
from specrun.sampling.sampler import TokenLogprob
from specrun.serving import service
from specrun.serving.prompts import Prompt
from specrun.serving.request_fields import Sending
from specrun.serving.service import Event, Job, Piece

ALONG = 600.0  # keep_alive_s of who reads along
NEVER = 600.0
END = Completion.__new__(Completion)  # only told apart from pieces here


def started(n: int = 1, stream: bool = True) -> Job:
    return Job([(Prompt("x", [1]), Request([1]))] * n, Sending(stream=stream), lambda _: False)


def pieces(text: str) -> list[Piece]:
    """A piece for each letter, with a log-probability of its own."""
    return [Piece(letter, (TokenLogprob(ord(letter), -1.0, ()),)) for letter in text]


async def rest_of(events: AsyncIterator[Event | None]) -> list[str]:
    """What still comes: texts of pieces, and "|" for the end of an answer."""
    return ["|" if isinstance(event, Completion) else cast("Piece", event).text async for event in events]


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_the_first_piece_and_the_end_come_at_once(monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    monkeypatch.setattr(service, "GATHER_S", NEVER if stream else 0.0)

    async def run() -> None:
        job = started(stream=stream)
        events = job.events(ALONG)
        first, *others = pieces("abcdef")
        job.emit(first)
        assert await anext(events) == first
        for piece in others:
            job.emit(piece)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(following := asyncio.ensure_future(anext(events))), 0.02)
        job.emit(END)
        assert await following == Piece("bcdef", tuple(one for piece in others for one in piece.logprobs))
        assert await rest_of(events) == ["|"]

    asyncio.run(run())


def test_what_comes_slowly_comes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "GATHER_S", 0.0)

    async def run() -> None:
        job = started()
        events = job.events(ALONG)
        for piece in pieces("abc"):
            job.emit(piece)
            assert await anext(events) == piece
            await asyncio.sleep(0.01)
        job.emit(END)
        assert await rest_of(events) == ["|"]

    asyncio.run(run())


def test_what_was_held_comes_when_the_time_is_over_though_nothing_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "GATHER_S", 0.01)

    async def run() -> None:
        job = started()
        events = job.events(ALONG)
        for piece in pieces("abc"):
            job.emit(piece)
        assert [cast("Piece", await anext(events)).text for _ in range(2)] == ["a", "bc"]  # the answer has no end yet

    asyncio.run(run())


def test_every_answer_of_a_job_begins_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "GATHER_S", NEVER)

    async def run() -> None:
        job = started(n=2)
        for event in [*pieces("abc"), END, *pieces("de"), END]:
            job.emit(event)
        assert await rest_of(job.events(ALONG)) == ["a", "bc", "|", "d", "e", "|"]

    asyncio.run(run())


def test_an_error_comes_behind_what_was_written_before() -> None:
    async def run() -> None:
        job = started()
        events = job.events(ALONG)
        job.emit(pieces("a")[0])
        job.emit(pieces("b")[0])
        job.emit(SpecrunError("broken"))
        assert [cast("Piece", await anext(events)).text for _ in range(2)] == ["a", "b"]
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


def test_what_comes_behind_the_last_answer_is_no_error() -> None:
    async def run() -> None:
        job = started()
        for event in (Piece("a"), END, SpecrunError("the server is stopping")):
            job.emit(event)
        assert await rest_of(job.events(ALONG)) == ["a", "|"]

    asyncio.run(run())
