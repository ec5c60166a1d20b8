"""What is emitted comes in order, the first text and the end at once, and what lies between them in few pieces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest

from specrun.decoding.completion import Completion
from specrun.decoding.request import Request
from specrun.errors import SpecrunError
from specrun.sampling.sampler import TokenLogprob
from specrun.serving import job as jobs
from specrun.serving.job import Asked, Event, Job, Outbox, Piece
from specrun.serving.prompts import Prompt

ALONG, TO_THE_END = 600.0, None  # keep_alive_s of who reads along, and of who does not
NEVER = 600.0
REST = 20.0
END = Completion.__new__(Completion)  # only told apart from pieces here


def asked(n: int) -> list[Asked]:
    return [Asked(Prompt("x", [1]), Request([1]))] * n


def started(n: int = 1) -> Job:
    return Job(asked(n), lambda _: False)


def pieces(text: str) -> list[Piece]:
    """A piece for each letter, with a log-probability of its own."""
    return [Piece(letter, (TokenLogprob(ord(letter), -1.0, ()),)) for letter in text]


async def rest_of(events: AsyncIterator[Event | None]) -> list[str]:
    """What still comes: texts of pieces, and "|" for the end of an answer."""
    return ["|" if isinstance(event, Completion) else cast("Piece", event).text async for event in events]


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
        assert cast("Piece", await anext(events)).text == "cd"  # though the answer has no end yet

    asyncio.run(run())


def test_every_answer_of_a_job_begins_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "GATHER_S", NEVER)

    async def run() -> None:
        job = started(n=2)
        events = job.events(ALONG)
        for event in [*pieces("ab"), END]:
            job.emit(event)
        assert cast("Piece", await anext(events)).text == "ab"
        assert await anext(events) == END
        job.emit(pieces("c")[0])
        assert cast("Piece", await anext(events)).text == "c"
        for event in [*pieces("d"), END]:
            job.emit(event)
        assert await rest_of(events) == ["d", "|"]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("keep_alive_s", "own", "others", "following"),
    [(TO_THE_END, "a", "bcd", Piece("bcd", tuple(one.logprobs[0] for one in pieces("bcd")))), (ALONG, "ab", "", END)],
    ids=["who does not read along gets the rest with the end", "gathering is no silence"],
)
def test_nothing_comes_before_the_end(
    monkeypatch: pytest.MonkeyPatch, keep_alive_s: float | None, own: str, others: str, following: Event
) -> None:
    monkeypatch.setattr(jobs, "GATHER_S", 0.01)

    async def run() -> None:
        job = started()
        events = job.events(keep_alive_s)
        await emitted(job, events, *pieces(own))
        for piece in pieces(others):
            job.emit(piece)
        next_one = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0.05)
        assert not next_one.done()
        job.emit(END)
        assert await next_one == following

    asyncio.run(run())


def test_an_error_comes_behind_what_was_written_before() -> None:
    async def run() -> None:
        job = started()
        events = job.events(ALONG)
        job.emit(pieces("a")[0])
        job.emit(SpecrunError("broken"))
        assert cast("Piece", await anext(events)).text == "a"
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


# Events that can wait do not wake a reader who comes again by himself, which he does only where that pays.


@pytest.fixture
def outbox() -> Outbox[str]:
    return Outbox()


def test_slow_events_wake_each_time(outbox: Outbox[str]) -> None:
    for now in (0.0, 25.0, 50.0, 75.0):
        assert outbox.put("a", can_wait=True)
        assert outbox.take(now, REST) == ["a"]
        assert not outbox.rests


def test_fast_events_are_gathered_as_long_as_they_come(outbox: Outbox[str]) -> None:
    for now in (0.0, 2.0):
        assert outbox.put("a", can_wait=True)
        assert outbox.take(now, REST) == ["a"]
    for now in (22.0, 45.0):
        assert outbox.rests
        assert not outbox.put("b", can_wait=True)
        assert not outbox.put("c", can_wait=True)
        assert outbox.take(now, REST) == ["b", "c"]
    assert outbox.rests
    assert outbox.take(65.0, REST) == []  # it has come in vain
    assert not outbox.rests
    assert outbox.put("d", can_wait=True)
    assert outbox.take(66.0, REST) == ["d"]
    assert not outbox.rests


def test_events_of_before_the_first_look_wake_each(outbox: Outbox[str]) -> None:
    assert outbox.put("a", can_wait=True)
    assert outbox.put("b", can_wait=True)
    assert outbox.take(0.0, REST) == ["a", "b"]


def test_what_cannot_wait_wakes_always_and_takes_along_what_waits(outbox: Outbox[str]) -> None:
    for now in (0.0, 1.0):
        outbox.put("a", can_wait=True)
        outbox.take(now, REST)
    assert not outbox.put("b", can_wait=True)
    assert outbox.put("end", can_wait=False)
    assert outbox.take(2.0, REST) == ["b", "end"]
    assert not outbox.rests
    assert outbox.put("the next one", can_wait=True)  # the beginning of something new does not wait


def test_who_rests_without_end_is_woken_by_the_end_only(outbox: Outbox[str]) -> None:
    assert outbox.put("a", can_wait=True)
    assert outbox.take(0.0, None) == ["a"]
    assert outbox.rests
    assert not outbox.put("b", can_wait=True)
    assert outbox.put("end", can_wait=False)
    assert outbox.take(99.0, None) == ["b", "end"]
