"""Lines of `specrun generate --jsonl`, and where their answers go: stdout, or a file.

Each answer in a file is appended as soon as it is ready, with digests of what it was made from. The same command then
leaves out the lines that have an answer. When all lines are done, the file is put into their order.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from filelock import FileLock, Timeout

from specrun.errors import SpecrunError, UsageError, disk_errors, words_of
from specrun.locations import json_text, parse_json, read_bytes, whole_file
from specrun.views import output

_MADE_FROM = "made_from"  # the digests of an object: those of the prompt and of what else its text depends on
_BEGINNING = b'{"id": '  # of every line
_LAST = 1 << 62  # the number of an answer whose line has not come


@dataclass(frozen=True)
class PromptLine:
    """One line of a JSONL input."""

    id: Any  # the line's number if it has none, or none that could be read
    prompt: str = ""
    error: str | None = None  # why the line has no usable prompt
    number: int = 0  # of the line
    has_id: bool = True  # whether the id is its own; another line may have the number of this one as its id

    @property
    def place(self) -> dict[str, Any]:
        """The beginning of its object: `id`, and `line` where that is its number."""
        return {"id": self.id} if self.has_id else {"id": self.id, "line": self.number}

    @property
    def name(self) -> str:
        """Its id as JSON; without one `line N`, which is no JSON and so no other line's id."""
        return json.dumps(self.id, sort_keys=True) if self.has_id else f"line {self.number}"


@dataclass
class Printed:
    """Objects on stdout, in the order of the lines or as they are ready. Use it in a `with` statement.

    after_ctrl_c: what becomes of texts after that, for people. if_otherwise: what other options ask for, too.
    """

    after_ctrl_c = "Ctrl-C ends the texts as they are"
    if_otherwise = ""

    as_ready: bool
    _waiting: dict[int, dict[str, Any]] = field(default_factory=dict)
    _next: int = 0

    def has(self, _number: int, _line: PromptLine) -> bool:
        """Whether the line, which came as the `number`th, needs no answer, as it has one."""
        return False

    def put(self, number: int, _line: PromptLine, value: dict[str, Any]) -> bool:
        """Take the object of a line. Returns whether it is printed, now or later."""
        if self.as_ready:
            output.write_json(value)
            return True
        self._waiting[number] = value
        while self._next in self._waiting:
            output.write_json(self._waiting.pop(self._next))
            self._next += 1
        return True

    def ended(self, texts: str, n_cut: int) -> str:
        """What became of the texts of a run that Ctrl-C ended. texts: the whole ones. n_cut: texts that are not."""
        cut = f", {n_cut} written as far as {'it' if n_cut == 1 else 'they'} came" if n_cut else ""
        return f"{texts} finished{cut}; with --output FILE the same command would go on with the others"

    def __enter__(self) -> Printed:
        return self

    def __exit__(self, *_: object) -> None:
        """Print what waits for lines before it, which will not be answered any more."""
        for number in sorted(self._waiting):
            output.write_json(self._waiting.pop(number))


def digest(*parts: Any) -> str:
    """16 hexadecimal digits for these values."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


@dataclass
class _Kept:
    """An answer in the file. has_id: as its line. number: of that line, as far as it has come."""

    line: bytes
    made_from: Sequence[str]
    is_failed: bool
    has_id: bool
    number: int = _LAST


class AnswersFile:
    """The answers in a file. Use it in a `with` statement, which needs no loaded model.

    known: all lines that will come; without them every line is checked as it comes.
    Raises UsageError for a file that is something else or that another process writes, and, before anything is written,
    for known lines that `has` refuses.
    """

    after_ctrl_c = "Ctrl-C keeps the finished texts"
    if_otherwise = " and another --output"

    def __init__(self, path: Path, known: Sequence[PromptLine] = ()) -> None:
        if path.exists() and not path.is_file():
            raise UsageError(f"{path} is no regular file; name another --output")
        path = Path(os.path.realpath(path))  # by whatever name, it has one lock
        self._path, self._known = path, known
        self._run: str | None = None
        self._kept: dict[str, _Kept] = {}  # by `PromptLine.name`
        self._seen: dict[str, int] = {}  # ids that came in this run, and the number of their lines
        self._goes_on = False  # whether any line was left out
        self._lock = FileLock(path.with_name(f".{path.name}.lock"))

    def __enter__(self) -> AnswersFile:
        try:
            Path(self._lock.lock_file).touch()  # what cannot be made is no lock of another process
            self._lock.acquire(timeout=0)
            self._size = self._read()
            self._check()
            self._is_new = not self._path.exists()
            self._file = self._path.open("w+b" if self._is_new else "r+b", buffering=0)
            self._file.truncate(self._size)
            self._file.seek(self._size)
        except Timeout as error:
            raise UsageError(f"another specrun writes {self._path}; name another --output") from error
        except OSError as error:
            self._release()
            raise UsageError(f"{self._path} cannot be written: {words_of(error)}; name another --output") from error
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        self._file.close()
        try:
            if kind is None:
                self._put_in_order()
            elif self._is_new and not self._size:
                self._path.unlink(missing_ok=True)
        finally:
            self._release()

    def _release(self) -> None:
        with suppress(OSError):  # Windows removes no file that is in use
            Path(self._lock.lock_file).unlink(missing_ok=True)
        self._lock.release()

    def _read(self) -> int:
        """Read what is there. Returns the bytes up to the end of the last whole line."""
        data = read_bytes(self._path, UsageError) if self._path.exists() else b""
        end = data.rfind(b"\n") + 1
        if end < len(data):
            if not data[end:].startswith(_BEGINNING[: len(data) - end]):
                raise self._is_foreign(data.count(b"\n") + 1)
            output.note(f"the last line of {self._path} is not complete, as a run was ended there; it is written again")
        for number, line in enumerate(data[:end].splitlines(keepends=True), start=1):
            try:
                value = parse_json(line)
                is_failed, has_id = "error" in value, "line" not in value
                asked = PromptLine(value["id"], number=value.get("line", 0), has_id=has_id)
                made_from = [] if is_failed else list(map(str, value[_MADE_FROM]))
                self._kept[asked.name] = _Kept(line, made_from, is_failed, has_id)
            except (ValueError, TypeError, KeyError) as error:
                raise self._is_foreign(number) from error
        return end

    def _is_foreign(self, number: int) -> UsageError:
        return UsageError(
            f"{self._path} has something else than answers of `generate --output` in line {number}; name another file"
        )

    def begin(self, run: str) -> None:
        """Compare answers by what else they depend on, too, not by their prompts alone. run: the digest of that."""
        self._run = run
        self._check()

    def _check(self) -> None:
        for number, line in enumerate(self._known):
            if not line.error:
                self.has(number, line)

    def has(self, number: int, line: PromptLine) -> bool:
        """Whether the line has its answer. Raises UsageError if that is of something else."""
        name = line.name
        if (before := self._seen.setdefault(name, line.number)) != line.number:
            raise UsageError(
                f"lines {before} and {line.number} have the same id, {name}; with --output each needs its own"
            )
        kept = self._kept.get(name)
        made_from = self._made_from(line)
        if kept is None or kept.is_failed:
            return False
        is_same = kept.made_from[:1] == made_from[:1]
        if self._run is None and is_same:
            return True
        if kept.made_from != made_from:
            what = "written with other options or by another model" if is_same else "to another prompt"
            which = f"with the id {name}" if line.has_id else f"of {name}"
            raise UsageError(f"{self._path} has an answer {which} already, {what}; name another --output, or delete it")
        if not self._goes_on:
            self._goes_on = True
            output.note(f"lines whose answers are in {self._path} already are left out")
        kept.number = number
        return True

    def ended(self, texts: str, _n_cut: int) -> str:
        """As `Printed.ended`; those that are not whole are not in the file."""
        return f"{texts} kept; the same command goes on with the others"

    def put(self, number: int, line: PromptLine, value: dict[str, Any]) -> bool:
        """Append an answer if it is whole. Returns whether that was done. Raises SpecrunError if it fails; then the
        file is as it was before.
        """
        if value.get("finish_reason") == "interrupted":
            return False
        kept, made_from, is_failed = self._kept.get(line.name), self._made_from(line), "error" in value
        if is_failed and kept and not kept.is_failed:
            self._seen.setdefault(line.name, line.number)
            kept.number = min(kept.number, number)
            which = "with this id" if line.has_id else f"of {line.name}"
            output.note(f"{value['error']}; the answer {which} stays")
            return False
        data = json_text(value if is_failed else value | {_MADE_FROM: made_from}).encode() + b"\n"
        try:
            if self._file.write(data) != len(data):
                raise OSError
        except OSError as error:
            self._file.truncate(self._size)
            raise SpecrunError(
                f"{self._path} cannot be written: {words_of(error)}; the answers before are in it, and the same "
                "command goes on from there"
            ) from error
        self._size += len(data)
        self._kept.pop(line.name, None)
        self._kept[line.name] = _Kept(data, made_from, is_failed, line.has_id, number)
        return True

    def _made_from(self, line: PromptLine) -> list[str]:
        return [digest(line.prompt), self._run or ""]

    def _put_in_order(self) -> None:
        """Put the answers into the order of their lines, without failures that were made good. Others come last."""
        # A line that was wrong and had no id may have one now.
        kept = [one for one in self._kept.values() if one.has_id or not one.is_failed or one.number != _LAST]
        ordered = b"".join(one.line for one in sorted(kept, key=lambda one: one.number))
        if ordered != read_bytes(self._path, SpecrunError):
            later = "put into the order of its lines; it has all answers, and the same command tries again"
            with disk_errors(later, self._path), whole_file(self._path) as file:
                file.write(ordered)
