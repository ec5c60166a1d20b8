"""From a target to its draft: candidates are written, measured and dropped one by one, and the best one stays."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from specrun.catalog import made
from specrun.catalog.gguf_file import GgufFile
from specrun.errors import LlamaError, ModelFileError, PairError, SpecrunError, UsageError
from specrun.making import quantizing
from specrun.making.candidates import DEFAULT_SHARES, DEFAULT_TYPES, SAME, Candidate, candidates
from specrun.making.measuring import Quality, Reference, measure, read_target
from specrun.making.result import Outcome, Result
from specrun.units import size_text

CLEARLY_SMALLER = 0.8  # of the target's bytes: a draft of more cannot be much faster
_UNFINISHED = ".unfinished-draft."  # then the id of the process that writes it
_HEADER_BYTES = 64 * 2**20  # more than any vocabulary takes

Show = Callable[[str], None]


def make_draft(
    target: Path,
    types: Sequence[str] | None,
    shares: Sequence[float] | None,
    output: Path | None,
    usual: Path | None,
    show: Show,
    note: Callable[[str], None],
) -> Result:
    """Make the best draft for `target` and register it. types, shares, output None: what is usual. usual: the draft
    that would be taken if none was made; it is measured, too. `show` is called often, and what it raises
    stops everything; nothing is left behind then, and a draft that was made before stays.

    Raises UsageError, ModelFileError, PairError or LlamaError for a target or options that cannot be; SpecrunError
    where no draft can be made, or not be written.
    """
    file = GgufFile.read(target)
    folder = output.absolute().parent if output else made.home(target)
    if output:
        _check_output(output.absolute(), target)
    try:
        with _Workplace(folder) as workplace:
            outcomes = _sized(file, types, shares, show)
            _check_disk(folder, sum(sorted(o.n_bytes + _HEADER_BYTES for o in outcomes if not o.reason)[-2:]))
            reference = read_target(target, show, note)
            outcomes, best = _tried(file, outcomes, reference, workplace, show)
            rival = _rival(usual, reference, show) if usual else None
            path = output.absolute() if output else folder / best.candidate.file_name
            workplace.best.replace(path)
            made.register(target, made.MadeDraft(path, best.candidate.name))
    except OSError as error:
        raise SpecrunError(f"{error.filename or folder} cannot be written: {error.strerror}; {_ELSEWHERE}") from error
    return Result(target, file.quantization, file.n_bytes, reference.plain_ms, outcomes, best, path, rival)


_ELSEWHERE = "--output FILE or SPECRUN_DATA_DIR names another place"


class _Workplace:
    """Two files in the folder of the draft: the candidate at hand and the best so far. Both are gone in the end, and so
    is a folder that was made for them. Raises OSError.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.candidate, self.best = (folder / f"{_UNFINISHED}{os.getpid()}.{i}" for i in range(2))

    def __enter__(self) -> _Workplace:
        self._is_ours = not self._folder.exists()
        self._folder.mkdir(parents=True, exist_ok=True)
        for left in self._folder.glob(f"{_UNFINISHED}*"):  # of a process that was killed
            process = left.name.removeprefix(_UNFINISHED).partition(".")[0]
            if process.isdigit() and not psutil.pid_exists(int(process)):
                left.unlink(missing_ok=True)
        self.candidate.touch()
        return self

    def __exit__(self, *_: object) -> None:
        self.candidate.unlink(missing_ok=True)
        self.best.unlink(missing_ok=True)
        if self._is_ours and not any(self._folder.iterdir()):
            self._folder.rmdir()


def _check_output(output: Path, target: Path) -> None:
    """Raise UsageError if the draft cannot or should not be written there."""
    if output.is_dir() or not output.parent.is_dir():
        what = "is a folder" if output.is_dir() else "lies in a folder that does not exist"
        raise UsageError(f"--output {output} {what}; give the file to write")
    before = made.find(target)
    if output.exists() and not (before and before.path == output):
        raise UsageError(f"--output {output} exists already; delete it or choose another name")


def _sized(file: GgufFile, types: Sequence[str] | None, shares: Sequence[float] | None, show: Show) -> list[Outcome]:
    """The candidates with their sizes; those that the quantizer refuses, or that are hardly smaller, with a reason.

    Raises SpecrunError if none is left.
    """
    known: dict[Candidate, Outcome] = {}

    def sized(candidate: Candidate) -> Outcome:
        if candidate not in known:
            show(f"looking at {candidate.name}")
            known[candidate] = _size(file, candidate, show)
        return known[candidate]

    if types is None:
        # Those in which the whole target would be clearly smaller; without any, its own.
        layers = tuple(range(file.n_layers))
        whole = [Candidate(name, layers, file.n_layers) for name in DEFAULT_TYPES]
        types = [candidate.type for candidate in whole if not sized(candidate).reason] or [SAME]
    found = [sized(candidate) for candidate in candidates(types, shares or DEFAULT_SHARES, file.n_layers)]
    if all(outcome.reason for outcome in found):
        why = f" ({found[-1].candidate.name}: {found[-1].reason})" if found else ""
        raise SpecrunError(
            f"no draft for {file.path.name} would be clearly smaller{why}; try other --types or --keep-layers"
        )
    return found


def _size(file: GgufFile, candidate: Candidate, show: Show) -> Outcome:
    try:
        n_bytes = quantizing.size_of(file.path, candidate, lambda: show(f"looking at {candidate.name}"))
    except LlamaError as error:
        return Outcome(candidate, 0, reason=f"llama.cpp refused: {error}")
    share = n_bytes / file.n_bytes
    reason = f"{share:.0%} of the target's size" if share > CLEARLY_SMALLER else ""
    return Outcome(candidate, n_bytes, reason=reason)


def _tried(
    file: GgufFile, planned: Sequence[Outcome], reference: Reference, workplace: _Workplace, show: Show
) -> tuple[list[Outcome], Outcome]:
    """Write and measure all candidates that have no reason to be skipped; the best one is left at `workplace.best`.

    Raises SpecrunError if none works, or the disk is full.
    """
    outcomes: list[Outcome] = []
    best: Outcome | None = None
    for i, outcome in enumerate(planned, 1):
        if not outcome.reason:
            where = f"{i} of {len(planned)}, {outcome.candidate.name}"
            outcome = _try(file, outcome, reference, workplace.candidate, show, where)
            if outcome.quality and (best is None or _speedup(outcome) > _speedup(best)):
                best = outcome
                workplace.candidate.replace(workplace.best)
        outcomes.append(outcome)
    if best is None:
        last = next(o for o in reversed(outcomes) if o.reason)
        raise SpecrunError(f"no draft could be made of {file.path.name}: {last.candidate.name}: {last.reason}")
    return outcomes, best


def _speedup(outcome: Outcome) -> float:
    return outcome.quality.speedup if outcome.quality else 0.0


def _try(file: GgufFile, outcome: Outcome, reference: Reference, path: Path, show: Show, where: str) -> Outcome:
    """The same with its quality, or with the reason why it has none."""

    def wait() -> None:
        show(f"{where}: writing, {min(0.99, _n_bytes(path) / outcome.n_bytes):.0%}")

    path.unlink(missing_ok=True)
    _check_disk(path.parent, outcome.n_bytes + _HEADER_BYTES)
    try:
        quantizing.write(file.path, path, outcome.candidate, wait)
        quality = measure(path, reference, lambda text: show(f"{where}: {text}"))
    except (LlamaError, ModelFileError) as error:
        _check_disk(path.parent, outcome.n_bytes - _n_bytes(path))
        reason = str(error).replace(f"{path} ", "").partition(";")[0]  # without the advice, meant for downloads
        return Outcome(outcome.candidate, outcome.n_bytes, reason=reason)
    return Outcome(outcome.candidate, path.stat().st_size, quality)


def _rival(usual: Path, reference: Reference, show: Show) -> Quality | None:
    """The quality of another draft; None if it cannot draft for the target."""
    try:
        return measure(usual, reference, lambda text: show(f"{usual.name}: {text}"))
    except (PairError, LlamaError, ModelFileError):
        return None


def _n_bytes(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _check_disk(folder: Path, needed: int) -> None:
    """Raise SpecrunError if `needed` bytes more do not fit."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise SpecrunError(
            f"the disk of {folder} is too full: {size_text(needed)} are needed and {size_text(free)} are free; "
            f"free some, or {_ELSEWHERE}"
        )
