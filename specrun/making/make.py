"""Makes the draft of a target: writes and measures candidates one after the other and keeps the best of them.

Candidates have fewer bits per weight, fewer layers, or both. llama.cpp's quantizer writes them in a child process, so
that it can be stopped at any time and its output is captured.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from specrun.catalog import made
from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.pairs import check_tokenizer
from specrun.display_text import size_text
from specrun.errors import LlamaError, ModelFileError, PairError, SpecrunError, UsageError
from specrun.hardware.cpu import usable_cores
from specrun.locations import file_bytes, remove_leftovers
from specrun.long_run import Run
from specrun.making.measuring import Quality, Reference, measure, read_target
from specrun.processes import child_process

SAME = "same"  # the type that keeps the target's own quantization
# Names of llama.cpp's quantize tool -> llama_ftype (include/llama.h). Types that need an importance matrix are left
# out, because users rarely have such a matrix.
FILE_TYPES: dict[str, int | None] = {
    "q2_k": 10, "q3_k_s": 11, "q3_k_m": 12, "q3_k_l": 13, "iq3_s": 26, "q4_0": 2, "q4_1": 3, "q4_k_s": 14, "q4_k_m": 15,
    "iq4_nl": 25, "iq4_xs": 30, "q5_0": 8, "q5_1": 9, "q5_k_s": 16, "q5_k_m": 17, "q6_k": 18, "q8_0": 7, SAME: None,
}  # fmt: skip
DEFAULT_TYPES = ("q2_k", "q3_k_s", "q4_0")
DEFAULT_SHARES = (1.0, 0.75, 0.5)  # of the target's layers


@dataclass(frozen=True)
class Candidate:
    """A draft that could be made."""

    type: str  # a key of FILE_TYPES
    kept: tuple[int, ...]  # indices of the target's layers that the draft has, ascending
    n_layers: int  # of the target

    @property
    def dropped(self) -> list[int]:
        """Indices of the layers that are left out, ascending."""
        return sorted(set(range(self.n_layers)) - set(self.kept))

    @property
    def name(self) -> str:
        """For people, e.g. `q2_k, 6 of 8 layers`; empty for the target itself."""
        layers = f"{len(self.kept)} of {self.n_layers} layers" if self.dropped else ""
        return ", ".join(part for part in ("" if self.type == SAME else self.type, layers) if part)

    @property
    def file_name(self) -> str:
        """Name of the draft's file."""
        return f"draft-{self.type}-{len(self.kept)}of{self.n_layers}.gguf"

    def write(self, target: Path, destination: Path | None, wait: Callable[[], None]) -> int:
        """Write the draft, unless `destination` is None, and return the bytes of its weights.

        wait: called ten times a second; it may raise to stop the quantizer. An incomplete file may then remain. Raises
        LlamaError if the quantizer refuses the candidate.
        """
        debug = logging.getLogger("specrun.llama").isEnabledFor(logging.DEBUG)
        request = {
            "source": str(target),
            "destination": str(destination) if destination else None,
            "file_type": FILE_TYPES[self.type],
            "dropped": self.dropped,
            "n_threads": usable_cores(),
            "debug": debug,
        }
        return int(child_process.answer("specrun.llama.quantizer", request, "the quantizer", wait, debug)["bytes"])


def kept_layers(n_layers: int, share: float) -> tuple[int, ...]:
    """Indices of about `share` of the layers: the first, the last, and others evenly spaced between them."""
    n_kept = min(n_layers, max(2, round(share * n_layers)))
    return tuple(int(i) for i in np.linspace(0, n_layers - 1, n_kept).round())


def candidates(types: Sequence[str], shares: Sequence[float], n_layers: int) -> list[Candidate]:
    """Every type with every share of the layers, the most layers first; never the target itself."""
    selections = sorted({kept_layers(n_layers, share) for share in shares}, key=len, reverse=True)
    combinations = (Candidate(name, kept, n_layers) for name in types for kept in selections)
    return [candidate for candidate in combinations if candidate.name]


def parse_types(text: str) -> tuple[str, ...]:
    """Parse `--types`, e.g. `q2_k,q4_0`. Raises UsageError."""
    names = tuple(dict.fromkeys(part.strip().lower() for part in text.split(",")))
    for name in names:
        if name not in FILE_TYPES:
            raise UsageError(f"--types has {name!r}; choose among {', '.join(FILE_TYPES)}")
    return names


def parse_shares(text: str) -> tuple[float, ...]:
    """Parse `--keep-layers`, e.g. `1,0.5`. Raises UsageError."""
    try:
        shares = tuple(float(part) for part in text.split(","))
    except ValueError:
        shares = ()
    if not shares or not all(0 < share <= 1 for share in shares):
        raise UsageError(f"--keep-layers must be a list of shares above 0 and up to 1, such as 1,0.5; got {text}")
    return shares


_CLEARLY_SMALLER = 0.8  # largest share of the target's bytes; a larger draft cannot be much faster than the target
_UNFINISHED = "unfinished-draft"  # in the name of a file that is being written
_HEADER_BYTES = 64 * 2**20  # upper bound; most of a header is the vocabulary
_ELSEWHERE = "choose another folder with --output FILE or SPECRUN_DATA_DIR"  # advice for a folder that fails


@dataclass(frozen=True)
class Outcome:
    """The result for one candidate."""

    candidate: Candidate
    n_bytes: int  # of its file; of its weights if it was not written; 0 if unknown
    quality: Quality | None = None  # None if it was skipped
    reason: str = ""  # why it was skipped

    def as_json(self) -> dict[str, Any]:
        value = {"name": self.candidate.name, "type": self.candidate.type, "layers": len(self.candidate.kept)}
        return value | {"bytes": self.n_bytes} | (self.quality.as_json() if self.quality else {"skipped": self.reason})


@dataclass(frozen=True)
class Result:
    """The result of the whole run."""

    target: GgufFile
    plain_ms: float  # milliseconds of a target pass over one token, with no draft in memory
    outcomes: list[Outcome]  # of all candidates, in the order in which they were tried
    best: Outcome  # the candidate whose draft was kept
    path: Path  # of the draft that was kept
    rival: Quality | None  # of the draft that would be used if none were made

    @property
    def remark(self) -> str | None:
        """A sentence about the effect of the target's quantization on its drafts; None for an unquantized target."""
        name, quantization = self.target.path.name, self.target.quantization
        if all(outcome.candidate.type == SAME for outcome in self.outcomes):
            return f"{name} is {quantization}: its weights were kept, and layers left out"
        if quantization not in ("F32", "F16", "BF16"):
            return f"{name} is {quantization} already; drafts made from its F16 file would be better"
        return None

    def as_json(self) -> dict[str, Any]:
        """The values of `--json`: times in milliseconds, shares and chances from 0 to 1."""
        target = {"path": str(self.target.path), "bytes": self.target.n_bytes, "ms": round(self.plain_ms, 4)}
        return {
            "target": target,
            "draft": {"path": str(self.path), **self.best.as_json()},
            "candidates": [outcome.as_json() for outcome in self.outcomes],
            "usual_draft": self.rival.as_json() if self.rival else None,
        }


def make_draft(
    target: Path,
    types: Sequence[str] | None,
    shares: Sequence[float] | None,
    output: Path | None,
    usual: Path | None,
    run: Run,
) -> Result:
    """Make the best draft for `target` and register it.

    types, shares: quantizations and shares of the layers to try; None: the defaults.
    output: file of the draft; None: a file in the data folder.
    usual: the draft that would be used if none were made; it is measured for comparison.
    Raises KeyboardInterrupt once the run is interrupted; the files written so far are deleted, and a previously made
    draft stays.
    """
    file = GgufFile.read(target)
    check_tokenizer(file)
    folder = output.absolute().parent if output else made.home(target)
    if output:
        previous = made.find(target)
        check_output(output.absolute(), previous.path if previous else None)
    try:
        with _workplace(folder) as places:
            outcomes = _sized(file, types, shares, run)
            n = sum(not outcome.reason for outcome in outcomes)
            _check_disk(folder, sum(sorted(o.n_bytes + _HEADER_BYTES for o in outcomes if not o.reason)[-2:]))
            what = f"drafts of {file.path.name} are made and compared with it, {n} in all"
            run.note(f"{what}; first it writes texts, for about a minute")
            reference = read_target(target, run)
            run, n_parts = run.work(what), n + (usual is not None)
            outcomes, best = _tried(file, outcomes, reference, places, n_parts, run)
            rival: Quality | None = None
            if usual:
                with suppress(PairError, LlamaError, ModelFileError):  # it cannot draft for the target
                    rival = measure(usual, reference, run.done(n / n_parts).labelled(usual.name))
            path = output.absolute() if output else folder / best.candidate.file_name
            places[1].replace(path)
            made.register(target, made.MadeDraft(path, best.candidate.name))
            made.forget_fastest(target)  # it was not compared with this draft
    except OSError as error:
        raise SpecrunError(f"{error.filename or folder} cannot be written: {error.strerror}; {_ELSEWHERE}") from error
    return Result(file, reference.plain_ms, outcomes, best, path, rival)


@contextmanager
def _workplace(folder: Path) -> Iterator[tuple[Path, Path]]:
    """Paths of two files in the draft's folder: the current candidate and the best candidate so far. In the end both
    files are deleted, and the folder too if it was created here.
    """
    was_created = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder, _UNFINISHED)
    candidate, best = (folder / f".{_UNFINISHED}.{os.getpid()}-{secrets.token_hex(4)}" for _ in range(2))
    candidate.touch()
    try:
        yield candidate, best
    finally:
        candidate.unlink(missing_ok=True)
        best.unlink(missing_ok=True)
        if was_created and not any(folder.iterdir()):
            folder.rmdir()


def check_output(output: Path, previous: Path | None = None) -> None:
    """Raise UsageError if `output` is a folder, lies in none, or is an existing file other than `previous`."""
    if output.is_dir() or not output.parent.is_dir():
        what = "is a folder" if output.is_dir() else "lies in a folder that does not exist"
        raise UsageError(f"--output {output} {what}; give the file to write")
    if output.exists() and output != previous:
        raise UsageError(f"--output {output} exists already; delete it or choose another name")


def _sized(file: GgufFile, types: Sequence[str] | None, shares: Sequence[float] | None, run: Run) -> list[Outcome]:
    """All candidates with their sizes, and those that will not be tried with the reason why: the quantizer refuses
    them, or they are too large.
    """

    @cache
    def sized(candidate: Candidate) -> Outcome:
        wait = partial(run.show, f"looking at {candidate.name}")
        wait()
        try:
            n_bytes = candidate.write(file.path, None, wait)
        except LlamaError as error:
            return Outcome(candidate, 0, reason=f"llama.cpp refused: {error}")
        share = n_bytes / file.n_bytes
        too_large = f"{share:.0%} of the target's size" if share > _CLEARLY_SMALLER else ""
        return Outcome(candidate, n_bytes, reason=too_large)

    if types is None:
        # The types in which the whole target would be clearly smaller; if there are none, the target's own.
        layers = tuple(range(file.n_layers))
        types = [name for name in DEFAULT_TYPES if not sized(Candidate(name, layers, file.n_layers)).reason] or [SAME]
    planned = [sized(candidate) for candidate in candidates(types, shares or DEFAULT_SHARES, file.n_layers)]
    if all(outcome.reason for outcome in planned):
        why = f" ({planned[-1].candidate.name}: {planned[-1].reason})" if planned else ""
        what = f"no draft for {file.path.name} would be clearly smaller{why}"
        raise SpecrunError(f"{what}; try other --types or --keep-layers")
    return planned


def _tried(
    file: GgufFile, planned: Sequence[Outcome], reference: Reference, places: tuple[Path, Path], n_parts: int, run: Run
) -> tuple[list[Outcome], Outcome]:
    """Write and measure all candidates that are not skipped, at the first of `places`. The best is left at the second.

    n_parts: of the whole work, of which each of them is one.
    """
    outcomes: list[Outcome] = []
    best: Outcome | None = None
    n_done, fastest_so_far = 0, 0.0
    for i, outcome in enumerate(planned, 1):
        if not outcome.reason:
            label = f"{i} of {len(planned)}, {outcome.candidate.name}"
            outcome = _try(file, outcome, reference, places[0], run.done(n_done / n_parts).labelled(label))
            n_done += 1
            if outcome.quality and outcome.quality.speedup > fastest_so_far:
                best, fastest_so_far = outcome, outcome.quality.speedup
                places[0].replace(places[1])
        outcomes.append(outcome)
    if best is None:
        last = next(o for o in reversed(outcomes) if o.reason)
        raise SpecrunError(f"no draft could be made of {file.path.name}: {last.candidate.name}: {last.reason}")
    return outcomes, best


def _try(file: GgufFile, outcome: Outcome, reference: Reference, path: Path, run: Run) -> Outcome:
    """Write and measure one candidate. The outcome has its quality, or the reason why it could not be measured."""
    path.unlink(missing_ok=True)
    _check_disk(path.parent, outcome.n_bytes + _HEADER_BYTES)
    try:
        outcome.candidate.write(
            file.path, path, lambda: run.show(f"writing, {min(0.99, file_bytes(path) / outcome.n_bytes):.0%}")
        )
        quality = measure(path, reference, run)
    except (LlamaError, ModelFileError) as error:
        _check_disk(path.parent, outcome.n_bytes - file_bytes(path))  # a full disk fails like a bad model
        reason = str(error).replace(f"{path} ", "").partition(";")[0]  # without the advice, which is for downloads
        return Outcome(outcome.candidate, outcome.n_bytes, reason=reason)
    return Outcome(outcome.candidate, path.stat().st_size, quality)


def _check_disk(folder: Path, needed: int) -> None:
    """Raise SpecrunError if the disk of `folder` has less than `needed` bytes free."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        sizes = f"{size_text(needed)} are needed and {size_text(free)} are free"
        raise SpecrunError(f"the disk of {folder} is too full: {sizes}; free some, or {_ELSEWHERE}")
