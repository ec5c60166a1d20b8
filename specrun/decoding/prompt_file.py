"""The file of a prompt's state: what a text left in the caches of both models, and what it may be used with.

It begins as the file that llama.cpp writes of a sequence, with the target's cache, so that llama.cpp reads it from the
disk into its cache and nobody needs memory for a copy. Other arrays follow, then a line with a JSON object: the tokens,
what the state may be used with, where the arrays lie, and a CRC-32 of each piece of all that is before. The last line
names the format, and has the SHA-256 and the length of that object. Nothing of a file is used unless all of that is
right.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from specrun.decoding.engine import SavedCaches
from specrun.hardware.memory import Memory
from specrun.llama.context import file_parts
from specrun.llama.draft import SavedDraft
from specrun.llama.heads.hidden_states import SavedStates
from specrun.llama.rollback import CachedText, PromptState, SavedText
from specrun.locations import parse_json

_FORMAT = "specrun prompt 2"
_LAST_LINE = len(f"\n{_FORMAT} {64 * '0'} {0:010d}\n")  # bytes
_PIECE = 1 << 22  # bytes with a checksum
_READERS = 4  # threads that check pieces while a person waits
_ROOM = 1.5  # bytes of free memory for a byte of a file, from which it stays there until both have read it
_BUFFER = 1 << 20  # bytes that are checked at once where memory is short
_LOOK_SECONDS = 0.002  # between two looks at what llama.cpp has read

Array = NDArray[Any]


class DamagedStateError(ValueError):
    """A file that is not, or not any more, what was written."""


class StoppedError(Exception):
    """Writing was stopped."""


@dataclass(frozen=True)
class Head:
    """What a file says of its state, without the state."""

    path: Path
    subject: str  # the fingerprint of what the target's part may be used with
    draft: str | None  # that of the draft's part and of a head's states; None without a draft
    held: CachedText  # the text; where its cache can go back to has no state
    seconds_per_token: float  # what reading a token of a prompt took
    n_bytes: int  # of the whole file
    n_checked: int  # of those before the JSON object
    value: dict[str, Any]  # the JSON object


def write(
    file: BinaryIO,
    saved: SavedCaches,
    subject: str,
    draft: str | None,
    seconds_per_token: float,
    is_stopped: Callable[[], bool],
) -> None:
    """Write the file, which is empty, or has the target's cache already if `saved` says so.

    The other arguments are the fields of `Head`. is_stopped: asked now and then whether to end early. Raises OSError
    and StoppedError.
    """
    target, of_draft, held = saved.target, saved.draft, saved.held
    value: dict[str, Any] = {
        "subject": subject,
        "draft": draft,
        "seconds_per_token": seconds_per_token,
        "tokens": held.tokens,
        "n_cached": held.n_cached,
        "any_end": held.any_end,
        "prompt_end": held.prompt.end if held.prompt else 0,
        "is_beginning": held.is_beginning,
    }
    arrays: dict[str, Array] = {}
    if held.prompt:
        arrays["prompt"] = held.prompt.state
    if target.for_head:
        arrays["head"] = target.for_head.states
        value["head_tokens"] = target.for_head.tokens
    if of_draft:
        arrays["draft"] = of_draft.state
        value["draft_tokens"], value["n_forgotten"] = of_draft.tokens, of_draft.n_forgotten
    if not isinstance(target.state, Path):
        for part in file_parts(target.state):
            _write(file, part, is_stopped)
    file.seek(0, os.SEEK_END)
    places = {}
    for name, array in arrays.items():
        places[name] = [file.tell(), array.dtype.name, array.shape]
        _write(file, array.reshape(-1).view(np.uint8).data, is_stopped)
    file.flush()
    value["arrays"], value["checks"] = places, []
    for piece in _pieces(file.tell()):  # in one thread: the next text may be written meanwhile
        _go_on(is_stopped)
        value["checks"].append(_check(Path(file.name), piece))
    line = json.dumps(value, separators=(",", ":")).encode()
    file.write(line + f"\n{_FORMAT} {hashlib.sha256(line).hexdigest()} {len(line):010d}\n".encode())


def read_head(path: Path) -> Head:
    """The head of a file. Raises DamagedStateError if it is no whole state, and OSError."""
    with path.open("rb") as file:
        n_bytes = os.fstat(file.fileno()).st_size
        file.seek(max(n_bytes - _LAST_LINE, 0))
        last = file.read()
        length = min(int(last[-11:-1]) if last[-11:-1].isdigit() else 0, n_bytes)
        file.seek(max(n_bytes - _LAST_LINE - length, 0))
        line = file.read(length)
    if last != f"\n{_FORMAT} {hashlib.sha256(line).hexdigest()} {length:010d}\n".encode():
        raise DamagedStateError(path.name)
    value = parse_json(line)
    end = value["prompt_end"]
    prompt = PromptState(end, np.empty(0, np.uint8)) if end else None
    held = CachedText(value["tokens"], value["n_cached"], value["any_end"], prompt, is_beginning=value["is_beginning"])
    subject, draft, each = value["subject"], value["draft"], value["seconds_per_token"]
    return Head(path, subject, draft, held, each, n_bytes, n_bytes - _LAST_LINE - length, value)


@contextmanager
def reading(head: Head, with_draft: bool, is_checked_first: bool) -> Iterator[SavedCaches]:
    """The state of a file, which has to be restored within the block, and must not be used before its end.

    with_draft: with the parts of the draft. is_checked_first: whether all is checked before that, as llama.cpp ends the
    process for some wrong recurrent states. Of attention it takes any rows, which are checked meanwhile, so that the
    disk is read once, also where the memory has no room for the file.

    Raises DamagedStateError, OSError and MemoryError, at the beginning or at the end.
    """
    value, pieces = head.value, _pieces(head.n_checked)
    places: dict[str, tuple[int, str, list[int]]] = value["arrays"]
    n_target = min((begin for begin, *_ in places.values()), default=head.n_checked)
    # What llama.cpp reads of the positions is in the first piece.
    is_first = [is_checked_first or begin == 0 or begin + n > n_target for begin, n in pieces]
    is_short, is_read = Memory.read().available_bytes < _ROOM * head.n_bytes, threading.Event()
    behind = partial(_check_behind, head.path, is_read, memoryview(bytearray(_BUFFER)))
    with ThreadPoolExecutor(1 if is_short else _READERS, "specrun-prompts") as pool:

        def differ(chosen: bool, check: Callable[[tuple[int, int]], int]) -> Iterator[bool]:
            of = [i for i, first in enumerate(is_first) if first == chosen]
            checks = pool.map(check, [pieces[i] for i in of])
            return (found != value["checks"][i] for i, found in zip(of, checks, strict=True))

        check = partial(_check, head.path)
        if any(differ(True, check)):
            raise DamagedStateError(head.path.name)
        saved = _state(head, with_draft, places)
        rest = differ(False, behind if is_short else check)
        try:
            yield saved
        finally:
            is_read.set()
        if any(rest):
            raise DamagedStateError(head.path.name)


def _state(head: Head, with_draft: bool, places: dict[str, tuple[int, str, list[int]]]) -> SavedCaches:
    value, arrays = head.value, dict[str, Array]()
    for name, (begin, kind, shape) in places.items():
        if with_draft or name == "prompt":
            count = int(np.prod(shape, dtype=np.int64))
            arrays[name] = np.fromfile(head.path, kind, count, offset=begin).reshape(shape)
    prompt = PromptState(value["prompt_end"], arrays["prompt"]) if "prompt" in arrays else None
    held = replace(head.held, prompt=prompt)
    for_head = SavedStates(value["head_tokens"], arrays["head"]) if "head" in arrays else None
    draft = SavedDraft(value["draft_tokens"], value["n_forgotten"], arrays["draft"]) if "draft" in arrays else None
    return SavedCaches(SavedText(held, head.path, for_head), draft)


def _write(file: BinaryIO, data: bytes | memoryview, is_stopped: Callable[[], bool]) -> None:
    for begin, n in _pieces(len(data)):
        _go_on(is_stopped)
        file.write(data[begin : begin + n])


def _pieces(n_bytes: int) -> Sequence[tuple[int, int]]:
    """The begin and the length of each piece of so many bytes."""
    return [(begin, min(_PIECE, n_bytes - begin)) for begin in range(0, n_bytes, _PIECE)]


def _check(path: Path, piece: tuple[int, int]) -> int:
    """The checksum of a piece of a file."""
    begin, n = piece
    with path.open("rb", buffering=0) as file:
        file.seek(begin)
        return zlib.crc32(file.read(n))


def _check_behind(path: Path, is_read: threading.Event, buffer: memoryview, piece: tuple[int, int]) -> int:
    """The checksum of a piece of a file that llama.cpp is reading, as soon as the system has it in memory from there.

    is_read: set when llama.cpp has read the file. buffer: where memory is short, a new one may take a second.
    """
    (begin, n), check = piece, 0
    with path.open("rb", buffering=0) as file:
        if sys.platform == "linux" and hasattr(os, "RWF_NOWAIT"):  # conda's Python, for one, is made without
            while n and not is_read.is_set():
                try:
                    n_part = os.preadv(file.fileno(), [buffer[:n]], begin, os.RWF_NOWAIT)
                except OSError:  # it is not there yet, or the file system cannot tell
                    n_part = 0
                if not n_part:
                    is_read.wait(_LOOK_SECONDS)
                check, begin, n = zlib.crc32(buffer[:n_part], check), begin + n_part, n - n_part
        if n:
            is_read.wait()
            file.seek(begin)
            check = zlib.crc32(file.read(n), check)
    return check


def _go_on(is_stopped: Callable[[], bool]) -> None:
    if is_stopped():
        raise StoppedError
