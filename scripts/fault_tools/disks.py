"""A disk that is full while something is saved: the old file stays whole, and the text is written all the same."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from fault_tools.injecting import KEEPING, PROMPT, TARGET, Ended, Extent, Fault, Injections, Place, SkippedFaultError
from tests.hub import serve

_SIZE = 4_000_000  # bytes of the disk
_LEARN = ("generate", PROMPT, "--raw", "-n", "48")


@contextmanager
def small_disk(folder: Path, n_bytes: int = _SIZE) -> Iterator[Path]:
    """A disk of its own at `folder`. Raises SkippedFaultError where mounting is not allowed."""
    folder.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={n_bytes}", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, check=False)
    except OSError as error:
        raise SkippedFaultError(f"there is no mount ({error.strerror})") from error
    if done.returncode:
        raise SkippedFaultError("only root can mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(disk: Path, spare: int) -> None:
    """Leave so many free bytes."""
    with (disk / "filling").open("wb") as file:
        free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
        file.write(bytes(max(free - spare, 0)))


def contents(folder: Path) -> dict[str, bytes]:
    """All files but the filling."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != "filling")
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


Command = Callable[[Place], Ended]


def saving(save: Command, codes: tuple[int, ...], parts: tuple[str, ...], place: Place, _extent: Extent) -> Injections:
    """Save once, fill the disk, save again: what was there before is still there, and nothing else."""
    with small_disk(place.data):
        first = save(place)
        yield from first.unless_good()
        before = contents(place.data)
        for spare in (0, 4096):
            fill(place.data, spare)
            run = save(place)
            after = contents(place.data)
            kept = all(len(after.get(name, b"")) >= len(content) // 2 for name, content in before.items())
            whole = not (place.leftovers() or set(after) - set(before))
            lost = "" if spare or after == before else "the old file" if not kept or not whole else "the old content"
            yield run.injection({*codes} if spare == 0 else {0, *codes}, *(parts if spare == 0 else ()), lost=lost)
            if spare and place.leftovers():
                yield run.injection({0, *codes}, lost=place.leftovers())
            (place.data / "filling").unlink()


def _exporting(place: Place) -> Ended:
    """A profile is what `learned` says of this pair; only its export is on the small disk."""
    elsewhere = {"SPECRUN_DATA_DIR": str(place.root / "other-data")}
    place.run(*_LEARN, environment=elsewhere)
    return place.run("tune", "--export", place.data / "profile.json", environment=elsewhere)


def _importing(place: Place) -> Ended:
    exported = place.work / "profile.json"
    if not exported.exists():
        elsewhere = {"SPECRUN_DATA_DIR": str(place.root / "other-data")}
        place.run(*_LEARN, environment=elsewhere)
        place.run("tune", "--export", exported, environment=elsewhere)
    return place.run("tune", "--import", exported)


def _saving_a_chat(place: Place) -> Ended:
    lines = f"hello\n/save {place.data / 'chat.json'}\nand on\n".encode()
    return place.run("chat", "-m", "embedded", "--speculate", "off", "-n", "60", "--no-learn", stdin=lines)


def prompts(place: Place, _extent: Extent) -> Injections:
    """Prompts that were read: the text is the same, and nothing half-written stays."""
    first = place.run(*KEEPING, "--no-prompt-cache")
    yield from first.unless_good()
    with small_disk(place.cache, 256_000_000):
        fill(place.cache, 0)
        run = place.run(*KEEPING)
        lost = "the text" if run.stdout != first.stdout else "something was kept" if place.kept_prompts() else ""
        yield run.injection({0}, lost=lost)
    for n_bytes in (0, 10_000, 500_000):  # files may not become larger, which the disk says in their middle
        run = place.run(*KEEPING, before=partial(resource.setrlimit, resource.RLIMIT_FSIZE, (n_bytes, n_bytes)))
        lost = "the text" if run.stdout != first.stdout else "something was kept" if place.kept_prompts() else ""
        yield run.injection({0}, lost=lost or place.leftovers())


def downloading(place: Place, _extent: Extent) -> Injections:
    """A model that does not fit: nothing is registered, and a larger disk goes on where the small one was full."""
    with serve() as hub, small_disk(place.hub, 3_000_000):
        hub.add("org/model-gguf", {"model-q8_0.gguf": TARGET.read_bytes()})
        command, environment = ("pull", "org/model-gguf/model-q8_0.gguf"), {"HF_ENDPOINT": hub.url}
        for _ in range(2):
            run = place.run(*command, environment=environment)
            registered = list(place.hub.rglob("snapshots/*/*.gguf"))
            yield run.injection({8}, "too full", lost="a model was registered" if registered else "")
        subprocess.run(["mount", "-o", "remount,size=64m", str(place.hub)], check=True)
        yield from place.run(*command, environment=environment).unless_good()


def making(command: tuple[object, ...], variable: str, place: Place, _extent: Extent) -> Injections:
    """Models that are made: nothing half-made stays on a disk without room."""
    for n_bytes in (1_000_000, 6_000_000, 9_000_000):
        with small_disk(place.root / "disk", n_bytes) as disk:
            run = place.run(*command, environment={variable: str(disk)})
            left = [path.name for path in disk.rglob("*") if path.is_file()]
            yield run.injection({1}, lost=f"left {left[0]} behind" if left else "")


def stdout(place: Place, _extent: Extent) -> Injections:
    """A text that is written to a file on a full disk."""
    for option in ((), ("--json",), ("--stats",)):
        with small_disk(place.root / "disk", 16384) as disk:
            fill(disk, 0)
            with (disk / "text").open("wb") as file:
                process = place.start("generate", PROMPT, "-n", "400", *option, "--no-learn", stdout=file.fileno())
                _, stderr = process.communicate()
            said = stderr.decode()
            run = Ended(process.returncode, b"", said, 0.0)
            yield run.injection({1}, "No space left on device")


_SAVING: dict[str, tuple[Command, tuple[int, ...], tuple[str, ...]]] = {
    "what a run learned": (lambda place: place.run(*_LEARN), (0,), ("is not kept", "No space left")),
    "a conversation (/save)": (_saving_a_chat, (1,), ("cannot be written",)),
    "a profile (--import)": (_importing, (9,), ("cannot be written",)),
    "a profile (--export)": (_exporting, (9,), ("cannot be written",)),
}

FAULTS = [
    *(Fault(f"disk full while saving {what}", partial(saving, *how)) for what, how in _SAVING.items()),
    Fault("disk full while keeping a prompt", prompts),
    Fault("disk full while downloading", downloading),
    Fault(
        "disk full while making a draft",
        partial(making, ("models", "make-draft", "--types", "q4_0"), "SPECRUN_DATA_DIR"),
    ),
    Fault("disk full while widening", partial(making, ("demo",), "SPECRUN_CACHE_DIR")),
    Fault("disk full under stdout", stdout),
]
