"""Surroundings that nobody expects: no home, the locale C, odd paths, clocks that jump, quotas, files that change."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from fault_tools.injecting import DRAFT, PROMPT, TARGET, Extent, Fault, Injections, Place, SkippedFaultError, ended
from fault_tools.memory import model_file
from specrun.hardware.cpu import allowed_cores
from tests.quotas import cpu_quota

_WRITE = ("generate", PROMPT, "--raw", "-n", "48", "--no-learn")
# A clock that is a day later or earlier at every second look. Python reads the file of this name when it starts.
_JUMPS = """
import itertools, time
real, jumps = time.time, itertools.cycle((0, 86400, -86400, 3600, -3 * 365 * 86400))
time.time = lambda: real() + next(jumps)
"""


def home(place: Place, _extent: Extent) -> Injections:
    """A home that cannot be written: texts are written all the same, what saves says in a line that it cannot."""
    nowhere = dict.fromkeys(("SPECRUN_DATA_DIR", "SPECRUN_CACHE_DIR", "SPECRUN_CONFIG_DIR", "HF_HOME"), "")
    nowhere |= {"HOME": "/proc/nobody", "XDG_DATA_HOME": "", "XDG_CACHE_HOME": "", "XDG_CONFIG_HOME": ""}
    expected: dict[tuple[object, ...], tuple[set[int], str]] = {
        ("generate", PROMPT, "--raw", "-n", "48"): ({0}, "is not kept"),
        _WRITE: ({0}, ""),
        (*_WRITE, "--exact"): ({0}, ""),
        ("tune", "--quick"): ({9}, "SPECRUN_DATA_DIR"),
        ("tune", "--list"): ({0}, ""),
        ("doctor",): ({1}, ""),
        ("demo",): ({1}, "SPECRUN_CACHE_DIR"),
        ("models", "list"): ({0}, ""),
        ("models", "make-draft", "--types", "q4_0", "--keep-layers", "0.5"): ({1}, "SPECRUN_DATA_DIR"),
        ("chat", "-m", "embedded", "--speculate", "off"): ({0}, ""),
        ("chat", "--continue"): ({2}, "no conversation"),
    }
    for command, (codes, part) in expected.items():
        yield place.run(*command, environment=nowhere).injection(codes, part)


def locale(place: Place, _extent: Extent) -> Injections:
    """Locales and encodings that lack most letters; the prompt, a path and the answer have them."""
    path = place.work / "größe 日本.txt"
    path.write_text("# größe 日本\n", encoding="utf-8")
    for more in (
        {"LC_ALL": "C"},
        {"LC_ALL": "POSIX"},
        {"LC_ALL": "no_SUCH"},
        {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ):
        for command in (
            ("generate", "# größe 日本\ndef", "--raw", "-n", "16", "--no-learn"),
            ("generate", "-f", path, "--raw", "-n", "16", "--no-learn"),
            ("models", "list"),
            ("generate", "x", "-m", f"{path}.gguf"),
        ):
            codes = {3} if "-m" in command else {0}
            if "PYTHONUTF8" in more and path not in command:
                codes |= {5}  # where Python is told to read arguments as ASCII, a prompt is not UTF-8
            yield place.run(*command, environment=more).injection(codes)


def paths(place: Place, _extent: Extent) -> Injections:
    """Folders and files with spaces, quotes, brackets, line ends and letters of all kinds in their names."""
    for name in (
        "a b",
        "it's",
        'a "quote"',
        "größe 日本 🦜",
        "[red]x[bold]",
        "$HOME `id`",
        "%s {0}",
        "-x",
        "two\nlines",
    ):
        odd = Place(place.root / name)
        target, draft = odd.work / f"t {name}.gguf", odd.work / f"d {name}.gguf"
        shutil.copy(TARGET, target)
        shutil.copy(DRAFT, draft)
        pair = ("-m", target, "--draft", draft)
        for command in (
            ("generate", PROMPT, "--raw", "-n", "48", *pair),
            ("tune", "--export", odd.work / f"p {name}", *pair),
            ("models", "info", target),
        ):
            yield odd.run(*command).injection({0}, lost=odd.leftovers())
        yield odd.run("generate", PROMPT, "-m", odd.work / f"not {name}.gguf").injection({3})


def clock(place: Place, _extent: Extent) -> Injections:
    """A clock of the day that jumps by days, to and fro, while everything runs."""
    patch = place.root / "clock"
    patch.mkdir()
    (patch / "sitecustomize.py").write_text(_JUMPS)
    path = os.pathsep.join([str(patch), place.environment()["PYTHONPATH"]])
    jumping = {"PYTHONPATH": path}
    for command in (
        ("generate", PROMPT, "--raw", "-n", "48", "--stats"),
        ("generate", PROMPT, "--raw", "-n", "48", "--stats"),
        (*_WRITE, "--method", "suffix-automaton", "--json"),
        ("tune", "--quick", "--draft", "none"),
        ("tune", "--show"),
        ("models", "make-draft", "--types", "q4_0", "--keep-layers", "0.5"),
        ("chat", "-m", "embedded", "--speculate", "off"),
    ):
        run = place.run(*command, environment=jumping)
        said = run.stdout.decode() + run.stderr
        negative = "a negative speed" if re.search(r"(?<!\S)-\d[\d.,]* (tokens/s|s|ms)\b", said) else ""
        yield run.injection({0}, lost=negative)


def quota(place: Place, _extent: Extent) -> Injections:
    """Quotas of processor time, of the process's own group and of one above: `doctor` tells them, and all works."""
    n_cores = len(allowed_cores())
    for cores in (0.5, 1, 1.5):
        said = f"{cores:g} of {n_cores} cores, as a cgroup allows, so that 1 thread" if cores < n_cores else "none"
        for n_below in (0, 1):
            try:
                with cpu_quota(cores, n_below) as enter:
                    run = place.run("doctor", "--json", before=enter)
                    found = [one["detail"] for one in json.loads(run.stdout or "[]") if one["check"] == "cpu quota"]
                    lost = "" if found and found[0].startswith(said) else f"the quota of {cores} cores: {found}"
                    yield run.injection({0, 1}, lost=lost)
                    yield place.run(*_WRITE, before=enter).injection({0})
            except OSError as error:
                raise SkippedFaultError(str(error)) from error


Change = Callable[[Path], None]


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _empty(path: Path) -> None:
    os.truncate(path, 0)


def _replaced(path: Path) -> None:
    other = path.with_suffix(".other")
    shutil.copy(TARGET, other)
    other.replace(path)


def _deleted(path: Path) -> None:
    path.unlink()


def _overwritten(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 4)
        file.write(bytes(path.stat().st_size // 2))


def changed(change: Change, codes: tuple[int, ...], part: str, same: bool, place: Place, extent: Extent) -> Injections:
    """A model file that is changed while it is in use. same: whether the text has to be the same all the same."""
    model = model_file(place.work)
    whole = model.read_bytes()
    command = ("generate", PROMPT, "--raw", "-n", "300", "-c", "512", "-m", model, "--speculate", "off")
    text = place.run(*command).stdout
    for after in extent.times(1.0):
        model.unlink(missing_ok=True)
        model.write_bytes(whole)
        started = time.monotonic()
        process = place.start(*command)
        assert process.stdout
        first = process.stdout.read(1)
        time.sleep(after)
        change(model)
        run = ended(process, started)
        written = first + run.stdout
        if run.code == 0 and (written == text or process.poll() is None):
            yield run.injection({0, *codes})  # it was over before
            continue
        lost = "" if not same or written == text else "the text"
        yield run.injection(codes, part, lost=lost)
    model.unlink(missing_ok=True)


_CHANGES: dict[str, tuple[Change, tuple[int, ...], str, bool]] = {
    "cut short": (_cut, (6,), "was cut short while it was in use", False),
    "emptied": (_empty, (6,), "was cut short while it was in use", False),
    "overwritten": (_overwritten, (0,), "was written to", False),
    "replaced": (_replaced, (0,), "", True),
    "deleted": (_deleted, (0,), "", True),
}

FAULTS = [
    Fault("a home that cannot be written", home),
    Fault("locale C", locale),
    Fault("odd paths", paths),
    Fault("a clock that jumps", clock),
    Fault("a quota of processor time", quota),
    *(Fault(f"a model in use that is {what}", partial(changed, *how)) for what, how in _CHANGES.items()),
]
