"""The file of `generate --jsonl --output`: whatever happens to it or to a run, no answer is lost, and the same command
goes on to the file that an undisturbed run writes.
"""

from __future__ import annotations

import json
import signal
from functools import partial
from pathlib import Path
from typing import Any

from fault_tools.disks import fill, small_disk
from fault_tools.files import damaged
from fault_tools.injecting import Extent, Fault, Injection, Injections, Place
from fault_tools.together import at_once

_USAGE, _FAILED = 2, 1
_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129, signal.SIGKILL: 137}
_FEW, _MANY = 12, 200  # lines


def _command(place: Place, n: int, out: Path, n_tokens: int = 2) -> tuple[object, ...]:
    """The command that answers `n` lines."""
    prompts = place.work / "prompts.jsonl"
    prompts.write_text("".join(f"{json.dumps({'id': i, 'prompt': f'def f{i}(x):'})}\n" for i in range(n)))
    options = ("--jsonl", "--raw", "-n", n_tokens, "-np", "2", "--no-learn", "--speculate", "tree")
    return ("generate", *options, "-f", prompts, "--output", out)


def _answers(content: bytes) -> dict[int, Any]:
    """What depends on no time, by the id, of whole lines."""
    values = map(json.loads, content[: content.rfind(b"\n") + 1].splitlines())
    return {value["id"]: value["token_ids"] for value in values}


def killed(number: int, place: Place, extent: Extent) -> Injections:
    """A run that is ended at many moments, and another run of the same command after each."""
    out = place.work / "answers.jsonl"
    command = _command(place, _FEW, out)
    place.run(*command)  # what a first run checks takes longer than all else
    out.unlink()
    seconds = place.run(*command).seconds
    whole = out.read_bytes()
    for after in extent.times(seconds):
        out.unlink(missing_ok=True)
        run = place.struck(number, after, *command)
        there = out.read_bytes() if out.exists() else b""
        again = place.run(*command)
        lost = again.problem({0}) or _lost(there, out, whole) or place.leftovers()
        yield run.injection({0, _CODES[number]}, lost=lost)


def twice(place: Place, _extent: Extent) -> Injections:
    """200 lines, in a run that is killed after 50 of them, one that is killed after 120, and one that ends."""
    out = place.work / "answers.jsonl"
    command = _command(place, _MANY, out)
    yield from place.run(*command).unless_good()
    whole = out.read_bytes()
    out.unlink()
    for n in (50, 120):
        process = place.start(*command)
        while process.poll() is None and not (out.exists() and out.read_bytes().count(b"\n") >= n):
            pass
        process.kill()
        process.communicate()
        yield Injection(process.returncode if process.returncode >= 0 else 128 - process.returncode)
    there = out.read_bytes()
    run = place.run(*command)
    yield run.injection({0}, lost=_lost(there, out, whole) or place.leftovers())


def _lost(there: bytes, out: Path, whole: bytes) -> str:
    """What the file lacks. there: what was in it before the last run. whole: what an undisturbed run wrote."""
    before, after, wanted = _answers(there), _answers(out.read_bytes()), _answers(whole)
    if list(after) != list(wanted):
        return f"{len(wanted.keys() - after.keys())} answers, or their order"
    if any(after[name] != tokens for name, tokens in before.items()):
        return "an answer that was there"
    return "" if after == wanted else "the text of an answer"


def changed(place: Place, _extent: Extent) -> Injections:
    """A damaged file: it is named and stays as it is, or what is whole in it stays and the rest is written again."""
    out = place.work / "answers.jsonl"
    command = _command(place, _FEW, out)
    yield from place.run(*command).unless_good()
    whole = out.read_bytes()
    for content in damaged(whole):
        out.write_bytes(content)
        run = place.run(*command)
        if run.code:
            lost = "" if out.read_bytes() == content and str(out) in run.stderr else f"unnamed or changed: {run.stderr}"
        else:
            lost = "" if list(_answers(out.read_bytes())) == list(range(_FEW)) else "answers, or their order"
        yield run.injection({0, _USAGE}, lost=lost or place.leftovers())


def full(place: Place, _extent: Extent) -> Injections:
    """A disk that becomes full: the answers before stay, and the same command goes on when there is room."""
    with small_disk(place.root / "disk", 1_000_000) as disk:
        out = disk / "answers.jsonl"
        command = _command(place, _FEW, out)
        yield from place.run(*command).unless_good()
        whole = out.read_bytes()
        for spare in (4096, 0):
            out.unlink()
            fill(disk, spare)
            run = place.run(*command)
            there = out.read_bytes() if out.exists() else b""
            (disk / "filling").unlink()
            again = place.run(*command)
            lost = "" if there.endswith(b"\n") or not there else "the last line is half-written"
            yield run.injection(
                {_FAILED, _USAGE}, "cannot be written", lost=lost or again.problem({0}) or _lost(there, out, whole)
            )


def both(place: Place, extent: Extent) -> Injections:
    """Two processes with one file: one writes it, and the other says so."""
    out = place.work / "answers.jsonl"
    command = _command(place, _FEW, out, 24)
    yield from place.run(*command).unless_good()
    whole = out.read_bytes()
    for _ in range(extent.moments):
        out.unlink()
        runs = at_once(place, 2, *command)
        n_refused = sum(run.code == _USAGE and "another specrun writes" in run.stderr for run in runs)
        for run in runs:
            yield run.injection({0, _USAGE}, lost=_lost(b"", out, whole) or ("" if n_refused < 2 else "both refused"))


FAULTS = [
    Fault("answers: a damaged file", changed),
    Fault("answers: a disk that becomes full", full),
    Fault("answers: two processes", both),
    Fault("answers: 200 lines, killed twice", twice),
    *(Fault(f"answers: {number.name}", partial(killed, number)) for number in _CODES),
]
