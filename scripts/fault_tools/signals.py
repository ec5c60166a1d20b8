"""Signals at many moments of many commands: what was written stays, nothing is left half-written, the code is right."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial

from fault_tools.injecting import KEEPING, PROMPT, Ended, Extent, Fault, Injections, Place, ended, wait_for_first_line
from tests.hub import Hub, serve

_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129, signal.SIGKILL: 137}
_WRITING = ("generate", PROMPT, "--raw", "-n", "200", "-c", "1024", "--speculate", "tree", "--no-learn")
_READING = ("generate", PROMPT * 400, "--raw", "-n", "1", "-c", "4096", "--speculate", "off", "--no-learn")
_REPOSITORY, _FILE, _BYTES = "org/model-gguf", "model-q8_0.gguf", 200_000_000

Check = Callable[[Place, Ended], str]
"""What was lost by a run that ended; '' if nothing."""


def _whole_answer(place: Place) -> str:
    return place.run(*_WRITING).stdout.decode()


def writing(number: int, place: Place, extent: Extent) -> Injections:
    """A text while it is loaded for and written: what is there is the beginning of the whole text."""
    whole = _whole_answer(place)

    def check(_: Place, run: Ended) -> str:
        text = run.stdout.decode(errors="replace")
        if text and not whole.startswith(text.removesuffix("\n")):
            return "a text that is not the beginning of the whole one"
        return "" if number == signal.SIGKILL or not text or text.endswith("\n") else "a last line without an end"

    return _struck(number, place, extent, _WRITING, check)


def reading(number: int, place: Place, extent: Extent) -> Injections:
    """A long prompt while it is read."""
    seconds = place.run(*_READING).seconds
    return _struck(number, place, extent, _READING, lambda *_: "", seconds=seconds)


def keeping(number: int, place: Place, extent: Extent) -> Injections:
    """A prompt that is read and kept on disk: what is there afterwards is whole, and gives the same text."""
    first = place.run(*KEEPING)
    seconds = first.seconds

    def check(place: Place, _: Ended) -> str:
        again = place.run(*KEEPING)
        place.run("doctor", "--forget-prompts")
        return again.problem([0]) or ("" if again.stdout == first.stdout else "the text")

    place.run("doctor", "--forget-prompts")
    return _struck(number, place, Extent(extent.every, 2 * extent.moments), KEEPING, check, seconds=seconds)


def learning(number: int, place: Place, extent: Extent) -> Injections:
    """What a run learns, while it is saved: old or new, and always readable."""
    command = ("generate", PROMPT, "--raw", "-n", "48")

    def check(place: Place, _: Ended) -> str:
        again = place.run(*command)
        return again.problem([0]) or (f"then: {again.stderr}" if "damaged" in again.stderr else "")

    place.run(*command)
    return _struck(number, place, Extent(extent.every * 2, extent.moments), command, check)


def chatting(number: int, place: Place, extent: Extent) -> Injections:
    """A conversation through a pipe."""
    command = ("chat", "-m", "embedded", "--speculate", "off", "-n", "100", "--no-learn")
    return _struck(number, place, extent, command, lambda *_: "", stdin=b"one\ntwo\nthree\n", codes=(0,))


def tuning(number: int, place: Place, extent: Extent) -> Injections:
    """`specrun tune` from its beginning: what was measured is kept, and no profile is there before it is whole."""
    return _struck(number, place, extent, ("tune", "--quick"), lambda *_: "", seconds=20.0)


def making(number: int, place: Place, extent: Extent) -> Injections:
    """A draft that is made from the target: it is there and registered, or nothing is."""

    def check(place: Place, _: Ended) -> str:
        drafts = list(place.data.glob("drafts/*/*.gguf"))
        entries = list(place.data.glob("drafts/*/draft.json"))
        lost = "" if len(drafts) == len(entries) else f"{len(drafts)} drafts with {len(entries)} entries"
        place.empty()
        return lost

    command = ("models", "make-draft", "--types", "q4_0", "--keep-layers", "0.5")
    started = time.monotonic()
    place.run(*command)
    seconds = time.monotonic() - started
    place.empty()
    return _struck(number, place, extent, command, check, seconds=seconds)


def widening(number: int, place: Place, extent: Extent) -> Injections:
    """The pair of `specrun demo` while it is written: a file has its final name only when it is whole."""
    sizes: dict[str, int] = {}

    def check(place: Place, _: Ended) -> str:
        for path in place.cache.rglob("*.gguf"):
            if sizes.setdefault(path.name, path.stat().st_size) != path.stat().st_size:
                return f"{path.name} has {path.stat().st_size} bytes instead of {sizes[path.name]}"
        place.empty()
        return ""

    return _struck(number, place, extent, ("demo",), check, seconds=8.0)


def downloading(number: int, place: Place, extent: Extent) -> Injections:
    """A download: what has come stays, nothing is registered before it is whole, and the next one goes on there."""
    with serve() as hub:
        yield from _downloading(number, place, extent, hub)


def _downloading(number: int, place: Place, extent: Extent, hub: Hub) -> Injections:
    content = os.urandom(1 << 20) * (_BYTES >> 20)
    digest = hashlib.sha256(content).hexdigest()
    hub.add(_REPOSITORY, {_FILE: b"GGUF" + content[4:]})
    digest = hashlib.sha256(b"GGUF" + content[4:]).hexdigest()
    environment = {"HF_ENDPOINT": hub.url}
    command = ("pull", f"{_REPOSITORY}/{_FILE}")
    seconds = place.run(*command, environment=environment).seconds
    for after in extent.times(seconds):
        place.empty()
        started = time.monotonic()
        process = place.start(*command, environment=environment, stdin=subprocess.PIPE)
        time.sleep(max(wait_for_first_line(process) + after - time.monotonic(), 0))
        process.send_signal(number)
        run = ended(process, started)
        lost = ""
        part = sum(path.stat().st_size for path in place.hub.rglob("*.incomplete"))
        if run.code and list(place.hub.rglob("snapshots/*/*.gguf")):
            lost = "a model was registered by a run that failed"
        again = place.run(*command, environment=environment)
        sent = [headers for headers in hub.ranges() if headers]
        if part and not sent:
            lost = lost or "the next download began anew"
        files = list(place.hub.rglob("snapshots/*/*.gguf"))
        if not files or hashlib.sha256(files[0].read_bytes()).hexdigest() != digest:
            lost = lost or again.problem([0]) or "the model"
        hub.requests.clear()
        yield run.injection({0, _CODES[number]}, lost=lost)


def closing(place: Place, _extent: Extent) -> Injections:
    """The reader of stdout ends after so many bytes (SIGPIPE)."""
    whole = len(_whole_answer(place))
    for n_bytes in range(0, whole, max(whole // 24, 1)):
        for command in (_WRITING, (*_WRITING, "--stats")):
            started = time.monotonic()
            process = place.start(*command)
            assert process.stdout
            process.stdout.read(n_bytes)
            process.stdout.close()
            process.stdout = None
            run = ended(process, started)
            yield run.injection({0, 141}, lost=place.leftovers())


def _struck(
    number: int,
    place: Place,
    extent: Extent,
    command: tuple[object, ...],
    check: Check,
    stdin: bytes = b"",
    codes: tuple[int, ...] = (),
    seconds: float | None = None,
) -> Injections:
    """seconds: how long the command takes; None measures it. A given time is long: it has few moments."""
    duration = place.run(*command, stdin=stdin).seconds if seconds is None else seconds
    for after in extent.times(duration, is_long=seconds is not None):
        run = place.struck(number, after, *command, stdin=stdin)
        leftovers = "" if number == signal.SIGKILL else place.leftovers()
        yield run.injection({0, _CODES[number], *codes}, lost=leftovers or check(place, run))


_SCENES: dict[str, Callable[[int, Place, Extent], Injections]] = {
    "while loading and writing": writing,
    "while reading a prompt": reading,
    "while keeping a prompt": keeping,
    "while learning": learning,
    "in a chat through a pipe": chatting,
    "while tuning": tuning,
    "while making a draft": making,
    "while widening": widening,
    "while downloading": downloading,
}

FAULTS = [
    *(
        Fault(f"{number.name} {scene}", partial(inject, number))
        for scene, inject in _SCENES.items()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
        if number != signal.SIGKILL
        or inject not in (making, widening)  # what a kill leaves there, the next run deletes
    ),
    Fault("SIGPIPE", closing),
]
