"""`specrun generate --jsonl --output FILE`: answers that a run which was ended before all lines goes on with.

Each answer is appended as soon as it is ready, with digests of what it was made from. The same command then leaves out
the lines that have an answer. When all lines are done, the file is put into their order.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from filelock import FileLock, Timeout

from specrun.cli.prompt_input import PromptLine
from specrun.decoding.generation import Request
from specrun.errors import SpecrunError, UsageError, words_of
from specrun.loading.model import Model
from specrun.locations import json_text, parse_json, read_bytes, whole_file

_MADE_FROM = "made_from"  # the digests of an object: those of the prompt and of what else its text depends on
_BEGINNING = b'{"id": '  # of every line
_LAST = 1 << 62  # the number of an answer whose line has not come


def digest(*parts: Any) -> str:
    """16 hexadecimal digits for these values."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def made_with(model: Model, request: Request, *form: Any) -> str:
    """A digest of what texts depend on besides their prompts. form: how prompts are made."""
    llama, settings = model.llama_model, model.engine.target.context.config.settings
    lossy = [str(plan) for plan in model.plans.candidates if not plan.method.lossless]
    run = llama.file.identity, llama.chat_template, model.engine.ctx_size, settings.type_k, settings.type_v
    return digest(run, lossy, lossy and model.draft, request, form)


@dataclass
class _Kept:
    """An answer in the file. is_unnamed: whether it is that of a wrong line without an id. number: of its line, as far
    as that has come.
    """

    line: bytes
    made_from: Sequence[str]
    is_failed: bool
    is_unnamed: bool
    number: int = _LAST


class AnswersFile:
    """The answers in a file, as `many_prompts.Answers`. Use it in a `with` statement, which needs no loaded model.

    run: the digest of what else the answers depend on, as soon as it is known (`made_with`). Before, only prompts are
    compared.
    note: called with a sentence for the user.
    Raises UsageError for a file that is something else, and for one that another process writes.
    """

    run: str | None = None
    after_ctrl_c = "Ctrl-C keeps the finished texts"
    ended = "kept; the same command goes on with the others"

    def __init__(self, path: Path, note: Callable[[str], None]) -> None:
        if path.exists() and not path.is_file():
            raise UsageError(f"{path} is no regular file; name another --output")
        path = Path(os.path.realpath(path))  # by whatever name, it has one lock
        self._path, self._note = path, note
        self._kept: dict[str, _Kept] = {}  # by `PromptLine.name`
        self._seen: dict[str, int] = {}  # ids that came in this run, and the number of their lines
        self._goes_on = False  # whether any line was left out
        self._lock = FileLock(path.with_name(f".{path.name}.lock"))

    def __enter__(self) -> AnswersFile:
        try:
            Path(self._lock.lock_file).touch()  # what cannot be made is no lock of another process
            self._lock.acquire(timeout=0)
            self._size = self._read()
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
            self._note(f"the last line of {self._path} is not complete, as a run was ended there; it is written again")
        for number, line in enumerate(data[:end].splitlines(keepends=True), start=1):
            try:
                value = parse_json(line)
                is_failed, has_id = "error" in value, value["id"] is not None or "line" not in value
                asked = PromptLine(value["id"], number=value.get("line", 0), has_id=has_id)
                made_from = [] if is_failed else list(map(str, value[_MADE_FROM]))
                self._kept[asked.name] = _Kept(line, made_from, is_failed, not has_id)
            except (ValueError, TypeError, KeyError) as error:
                raise self._is_foreign(number) from error
        return end

    def _is_foreign(self, number: int) -> UsageError:
        return UsageError(
            f"{self._path} has something else than answers of `generate --output` in line {number}; name another file"
        )

    def has(self, number: int, line: PromptLine) -> bool:
        """Whether the line has its answer. Raises UsageError if that is of something else."""
        name = line.name
        if (before := self._seen.setdefault(name, line.number)) != line.number:
            raise UsageError(
                f"lines {before} and {line.number} have the same id, {name}; with --output each needs its own"
            )
        kept = self._kept.get(name)
        if kept is None or kept.is_failed:
            return False
        made_from = self._made_from(line)
        is_same = kept.made_from[:1] == made_from[:1]
        if self.run is None and is_same:
            return True
        if kept.made_from != made_from:
            what = "written with other options or by another model" if is_same else "to another prompt"
            raise UsageError(
                f"{self._path} has an answer with the id {name} already, {what}; name another --output, or delete it"
            )
        if not self._goes_on:
            self._goes_on = True
            self._note(f"lines whose answers are in {self._path} already are left out")
        kept.number = number
        return True

    def put(self, number: int, line: PromptLine, value: dict[str, Any], is_failed: bool) -> None:
        """Append an answer. Raises SpecrunError if that fails; then the file is as it was before."""
        if value.get("finish_reason") == "interrupted":
            return
        kept, made_from = self._kept.get(line.name), self._made_from(line)
        if is_failed and kept and not kept.is_failed:
            self._seen.setdefault(line.name, line.number)
            self._note(f"{value['error']}; the answer with this id stays")
            return
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
        self._kept[line.name] = _Kept(data, made_from, is_failed, not line.has_id, number)

    def _made_from(self, line: PromptLine) -> list[str]:
        return [digest(line.prompt), self.run or ""]

    def _put_in_order(self) -> None:
        """Put the answers into the order of their lines, without failures that were made good. Others come last."""
        kept = [one for one in self._kept.values() if not (one.is_unnamed and one.number == _LAST)]
        ordered = b"".join(one.line for one in sorted(kept, key=lambda one: one.number))
        if ordered != read_bytes(self._path, SpecrunError):
            with whole_file(self._path) as file:
                file.write(ordered)
